"""All backbones and tasks of keras-hub, built as small as they go, without a download.

The classes are those that `keras_hub.models` has; `BACKBONES` and `TASKS` say how they are built.
"""

import inspect
import types

import keras
import keras_hub
import numpy as np

models = keras_hub.models

IMAGES, POSITIONS, VOCABULARY, CLASSES = 2, 6, 24, 3
SIDE = 32
RGB = (SIDE, SIDE, 3)

# fmt: off
TEXT = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
    "intermediate_dim": 16}
SHORT = TEXT | {"max_sequence_length": 16}
GROUPED = {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_query_heads": 2,
    "num_key_value_heads": 1, "hidden_dim": 8, "intermediate_dim": 16}
EXPERTS = {"num_experts": 2, "top_k": 1}
PATCHES = {"image_shape": RGB, "patch_size": 16, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
    "intermediate_dim": 16}
CLIP_TEXT = SHORT | {"embedding_dim": 8}
RESNET = {"input_conv_filters": [64], "input_conv_kernel_sizes": [3],
    "stackwise_num_filters": [64, 8, 8, 16], "stackwise_num_blocks": [1, 2, 2, 1],
    "stackwise_num_strides": [1, 2, 2, 2], "block_type": "basic_block"}
HGNET = {"depths": [1, 2], "embedding_size": 8, "hidden_sizes": [8, 16], "stem_channels": [3, 8, 8],
    "hidden_act": "relu", "use_learnable_affine_block": True,
    "stackwise_stage_filters": [(8, 8, 8, 1, 1, 3), (8, 8, 16, 2, 1, 3)],
    "apply_downsample": [False, True], "use_lightweight_conv_block": [False, True]}
MIT = {"num_layers": 2, "hidden_dims": [8, 16], "layerwise_depths": [1, 2],
    "layerwise_num_heads": [1, 2], "layerwise_sr_ratios": [2, 1], "layerwise_patch_sizes": [7, 3],
    "layerwise_strides": [4, 2], "max_drop_path_rate": 0.1, "image_shape": RGB}
T5GEMMA = {"vocabulary_size": VOCABULARY} | {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {
        "hidden_dim": 8,
        "intermediate_dim": 16,
        "num_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "layer_types": ["full_attention", "full_attention"],
    }.items()
}
LINEAR_ATTENTION = {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4,
    "linear_value_head_dim": 4}
# fmt: on


def _resnet(**kwargs):
    return models.ResNetBackbone(**RESNET | kwargs)


def _dino(**kwargs):
    return models.DINOV2Backbone(**PATCHES | {"position_embedding_shape": RGB} | kwargs)


def _vae():
    from keras_hub.src.models.vae.vae_backbone import VAEBackbone

    return VAEBackbone([32, 32], [1, 1], [32, 32], [1, 1])


# fmt: off
# The arguments of a backbone; those that are functions are called, to build other models.
BACKBONES = {
    "AlbertBackbone": SHORT | {"embedding_dim": 4},
    "BartBackbone": SHORT,
    "BASNetBackbone": {"image_encoder": lambda: _resnet(input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512], stackwise_num_blocks=[2, 2, 2, 2]),
        "num_classes": 1, "image_shape": (64, 64, 3)},
    "BertBackbone": SHORT,
    "BLIP2Backbone": {"vision_encoder": lambda: models.BLIP2VisionEncoder(image_size=SIDE,
        patch_size=16, num_layers=2, num_heads=2, hidden_dim=8, intermediate_dim=16,
        use_patch_bias=True, use_class_token=True, use_mha_bias=True, use_mlp_bias=True,
        dropout_rate=0.0, layer_norm_epsilon=1e-06, initializer_range=0.02),
        "qformer": lambda: models.BLIP2QFormer(num_query_tokens=3, num_layers=2, num_heads=2,
        hidden_dim=8, intermediate_dim=16, vision_dim=8, cross_attention_frequency=2, dropout=0.0,
        layer_norm_epsilon=1e-06), "language_model": lambda: models.BLIP2CustomOPT(**SHORT,
        num_query_tokens=3, qformer_hidden_dim=8, dropout=0.0)},
    "BloomBackbone": TEXT,
    "CLIPBackbone": {"vision_encoder": lambda: models.CLIPVisionEncoder(**PATCHES),
        "text_encoder": lambda: models.CLIPTextEncoder(**CLIP_TEXT), "projection_dim": 8},
    "CLIPTextEncoder": CLIP_TEXT,
    "CLIPVisionEncoder": PATCHES,
    "CSPNetBackbone": {"stem_filters": 8, "stem_kernel_size": 3, "stem_strides": 1,
        "stackwise_depth": [1, 2], "stackwise_strides": [1, 2], "stackwise_num_filters": [8, 16],
        "block_type": "dark_block", "stage_type": "csp", "block_ratio": [0.5], "image_shape": RGB},
    "DFineBackbone": {"backbone": lambda: models.HGNetV2Backbone(**HGNET |
        {"image_shape": (None, None, 3), "out_features": ["stage1", "stage2"]}),
        "decoder_in_channels": [8, 8], "encoder_hidden_dim": 8, "num_denoising": 0,
        "num_labels": CLASSES, "hidden_dim": 8, "learn_initial_query": False, "num_queries": 4,
        "anchor_image_size": (SIDE, SIDE), "feat_strides": [4, 8], "num_feature_levels": 2,
        "encoder_in_channels": [8, 16], "encode_proj_layers": [1], "num_attention_heads": 2,
        "encoder_ffn_dim": 16, "num_encoder_layers": 1, "hidden_expansion": 0.5,
        "depth_multiplier": 0.5, "eval_idx": -1, "num_decoder_layers": 2,
        "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "decoder_n_points": [2, 2],
        "lqe_hidden_dim": 8, "num_lqe_layers": 2, "out_features": ["stage1", "stage2"],
        "image_shape": RGB, "seed": 0},
    "DINOV2Backbone": PATCHES | {"position_embedding_shape": RGB},
    "DINOV3Backbone": PATCHES,
    "DebertaV3Backbone": SHORT | {"bucket_size": 4},
    "DeepLabV3Backbone": {"image_encoder": lambda: _resnet(image_shape=(64, 64, 3)),
        "spatial_pyramid_pooling_key": "P5", "low_level_feature_key": "P2", "upsampling_size": 8,
        "dilation_rates": [2, 3], "projection_filters": 8, "image_shape": (64, 64, 3)},
    "DeiTBackbone": PATCHES,
    "DenseNetBackbone": {"stackwise_num_repeats": [1, 2], "growth_rate": 4, "image_shape": RGB},
    "DepthAnythingBackbone": {"image_encoder": lambda: _dino(num_layers=4, patch_size=14,
        image_shape=(84, 84, 3)), "reassemble_factors": [4, 2, 1, 0.5],
        "neck_hidden_dims": [8, 8, 8, 8], "fusion_hidden_dim": 8, "head_hidden_dim": 4,
        "head_in_index": -1, "feature_keys": ["stage1", "stage2", "stage3", "stage4"]},
    "DistilBertBackbone": SHORT,
    "EdRecBackbone": {"vocab_size": VOCABULARY, "num_layers_enc": 2, "num_layers_dec": 2,
        "hidden_dim": 8, "intermediate_dim": 16, "num_heads": 2},
    "EfficientNetBackbone": {"stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0], "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [2, 2], "stackwise_input_filters": [8, 8],
        "stackwise_output_filters": [8, 16], "stackwise_expansion_ratios": [1, 4],
        "stackwise_squeeze_and_excite_ratios": [0.25, 0.25], "stackwise_strides": [1, 2],
        "stackwise_block_types": ["fused", "unfused"], "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False], "num_features": 16, "input_shape": RGB},
    "ElectraBackbone": {"vocab_size": VOCABULARY, "num_layers": 2, "num_heads": 2, "hidden_dim": 8,
        "embedding_dim": 8, "intermediate_dim": 16, "max_sequence_length": 16},
    "ESMBackbone": SHORT,
    "FNetBackbone": {name: SHORT[name] for name in SHORT if name != "num_heads"},
    "FalconBackbone": {"vocabulary_size": VOCABULARY, "num_layers": 2, "num_attention_heads": 2,
        "hidden_dim": 8, "intermediate_dim": 32},
    "FluxBackbone": {"input_channels": 4, "hidden_size": 8, "mlp_ratio": 2.0, "num_heads": 2,
        "depth": 2, "depth_single_blocks": 3, "axes_dim": [2, 2], "theta": 100, "use_bias": True,
        "image_shape": (4, 4), "text_shape": (POSITIONS, 8), "image_ids_shape": (4, 2),
        "text_ids_shape": (POSITIONS, 2), "y_shape": (8,)},
    "GPT2Backbone": SHORT,
    "GPTNeoXBackbone": SHORT | {"rotary_percentage": 0.5},
    "GemmaBackbone": GROUPED | {"head_dim": 4},
    "Gemma3Backbone": GROUPED | {"head_dim": 4, "image_size": SIDE},
    "Gemma3nBackbone": {"text_vocab_size": VOCABULARY, "text_hidden_size": 8,
        "num_hidden_layers": 2, "pad_token_id": 0, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": [16, 16],
        "hidden_activation": "gelu_approximate",
        "layer_types": ["full_attention", "full_attention"], "sliding_window": 4,
        "rope_theta": 10000.0, "max_position_embeddings": 16,
        "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4,
        "altup_num_inputs": 2, "laurel_rank": 2},
    "Gemma4Backbone": GROUPED | {"head_dim": 4, "image_size": SIDE},
    "GptOssBackbone": GROUPED | EXPERTS | {"head_dim": 4},
    "HGNetV2Backbone": HGNET | {"image_shape": RGB},
    "LlamaBackbone": GROUPED,
    "Llama3Backbone": GROUPED,
    "MetaCLIP2Backbone": {"vision_encoder": lambda: models.MetaCLIP2VisionEncoder(**PATCHES),
        "text_encoder": lambda: models.MetaCLIP2TextEncoder(**CLIP_TEXT), "projection_dim": 8},
    "MetaCLIP2TextEncoder": CLIP_TEXT,
    "MetaCLIP2VisionEncoder": PATCHES,
    "MiTBackbone": MIT,
    "MistralBackbone": GROUPED,
    "MixtralBackbone": GROUPED | EXPERTS,
    "MobileNetBackbone": {"stackwise_expansion": [[8, 16], [16, 16]],
        "stackwise_num_blocks": [2, 2], "stackwise_num_filters": [[8, 8], [16, 16]],
        "stackwise_kernel_size": [[3, 3], [3, 3]], "stackwise_num_strides": [[1, 1], [2, 1]],
        "stackwise_se_ratio": [[None, None], [0.25, 0.25]],
        "stackwise_activation": [["relu", "relu"], ["relu", "relu"]], "stackwise_padding": [[1, 1],
        [1, 1]], "output_num_filters": 16, "depthwise_filters": 16, "depthwise_stride": 1,
        "depthwise_residual": True, "last_layer_filter": 16, "image_shape": RGB},
    "MobileNetV5Backbone": {"stackwise_block_types": [["er"], ["uir", "uir"]],
        "stackwise_num_blocks": [1, 2], "stackwise_num_filters": [[8], [16, 16]],
        "stackwise_strides": [[2], [2, 1]], "stackwise_act_layers": [["relu"], ["relu", "relu"]],
        "stackwise_exp_ratios": [[4.0], [4.0, 4.0]], "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
        "stackwise_dw_kernel_sizes": [[0], [5, 5]], "stackwise_dw_start_kernel_sizes": [[0],
        [0, 0]], "stackwise_dw_end_kernel_sizes": [[0], [0, 0]], "stackwise_exp_kernel_sizes": [[3],
        [0, 0]], "stackwise_pw_kernel_sizes": [[1], [0, 0]], "stackwise_num_heads": [[0], [0, 0]],
        "stackwise_key_dims": [[0], [0, 0]], "stackwise_value_dims": [[0], [0, 0]],
        "stackwise_kv_strides": [[0], [0, 0]], "stackwise_use_cpe": [[False], [False, False]],
        "use_msfa": False, "num_features": 16, "image_shape": RGB},
    "MoonshineBackbone": {"vocabulary_size": VOCABULARY, "filter_dim": 8, "encoder_num_layers": 2,
        "decoder_num_layers": 2, "hidden_dim": 8, "intermediate_dim": 16, "encoder_num_heads": 2,
        "decoder_num_heads": 2},
    "OPTBackbone": SHORT,
    "PARSeqBackbone": {"image_encoder": lambda: models.ViTBackbone(**_vit()),
        "vocabulary_size": VOCABULARY, "max_label_length": POSITIONS, "decoder_hidden_dim": 8,
        "num_decoder_layers": 2, "num_decoder_heads": 2, "decoder_mlp_dim": 16},
    "PaliGemmaBackbone": GROUPED | {"image_size": SIDE, "head_dim": 4, "vit_patch_size": 16,
        "vit_num_heads": 2, "vit_hidden_dim": 8, "vit_num_layers": 1, "vit_intermediate_dim": 16},
    "Phi3Backbone": GROUPED,
    "QwenBackbone": GROUPED,
    "Qwen3Backbone": GROUPED | {"head_dim": 4},
    "Qwen3MoeBackbone": GROUPED | EXPERTS | {"head_dim": 4, "moe_intermediate_dim": 8},
    "Qwen3_5Backbone": GROUPED | LINEAR_ATTENTION,
    "Qwen3_5MoeBackbone": {name: GROUPED[name] for name in GROUPED if name != "intermediate_dim"} |
        LINEAR_ATTENTION | EXPERTS | {"moe_intermediate_dim": 8,
        "shared_expert_intermediate_size": 8},
    "QwenMoeBackbone": GROUPED | EXPERTS | {"moe_intermediate_dim": 8,
        "shared_expert_intermediate_dim": 8},
    "RWKV7Backbone": {"vocabulary_size": VOCABULARY, "hidden_size": 8, "head_size": 4,
        "num_layers": 2, "intermediate_dim": 16, "gate_lora": 4, "mv_lora": 4, "aaa_lora": 4,
        "decay_lora": 4},
    "ResNetBackbone": RESNET | {"image_shape": RGB},
    "RetinaNetBackbone": {"image_encoder": lambda: _resnet(image_shape=(64, 64, 3)), "min_level": 3,
        "max_level": 5, "use_p5": False, "image_shape": (64, 64, 3)},
    "RobertaBackbone": SHORT,
    "RoformerV2Backbone": TEXT | {"head_size": 4},
    "SAM3PromptableConceptBackbone":
        {"vision_encoder": lambda: keras_hub.layers.SAM3VisionEncoder(image_shape=(56, 56, 3),
        patch_size=14, num_layers=2, hidden_dim=8, intermediate_dim=16, num_heads=2,
        fpn_hidden_dim=8, fpn_scale_factors=[4.0, 2.0, 1.0, 0.5], pretrain_image_shape=(28, 28, 3),
        window_size=2, global_attn_indexes=[1]),
        "text_encoder": lambda: keras_hub.layers.SAM3TextEncoder(**TEXT | {"embedding_dim": 8}),
        "geometry_encoder": lambda: keras_hub.layers.SAM3GeometryEncoder(num_layers=2, hidden_dim=8,
        intermediate_dim=16, num_heads=2, roi_size=3),
        "detr_encoder": lambda: keras_hub.layers.SAM3DetrEncoder(num_layers=2, hidden_dim=8,
        intermediate_dim=16, num_heads=2),
        "detr_decoder": lambda: keras_hub.layers.SAM3DetrDecoder(image_shape=(56, 56, 3),
        patch_size=14, num_layers=2, hidden_dim=8, intermediate_dim=16, num_heads=2, num_queries=4),
        "mask_decoder": lambda: keras_hub.layers.SAM3MaskDecoder(num_upsampling_stages=3,
        hidden_dim=8, num_heads=2)},
    "SAMBackbone": {"image_encoder": lambda: models.ViTDetBackbone(**_vit_det()),
        "prompt_encoder": lambda: keras_hub.layers.SAMPromptEncoder(hidden_size=8,
        image_embedding_size=(4, 4), input_image_size=(64, 64), mask_in_channels=16),
        "mask_decoder": lambda: keras_hub.layers.SAMMaskDecoder(num_layers=2, hidden_size=8,
        intermediate_dim=16, num_heads=2, embedding_dim=8, num_multimask_outputs=3,
        iou_head_depth=2, iou_head_hidden_dim=8)},
    "SegFormerBackbone": {"image_encoder": lambda: models.MiTBackbone(**MIT),
        "projection_filters": 8},
    "SigLIPBackbone": {"vision_encoder": lambda: models.SigLIPVisionEncoder(**PATCHES),
        "text_encoder": lambda: models.SigLIPTextEncoder(**CLIP_TEXT)},
    "SigLIPTextEncoder": CLIP_TEXT,
    "SigLIPVisionEncoder": PATCHES,
    "SmolLM3Backbone": {"vocabulary_size": VOCABULARY, "hidden_dim": 8, "intermediate_dim": 16,
        "num_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "attention_bias": False, "attention_dropout": 0.0, "rope_layer_enabled_list": [True, True],
        "layer_types": ["attention", "attention"], "mlp_bias": False, "layer_norm_epsilon": 1e-05,
        "max_position_embeddings": 16, "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "StableDiffusion3Backbone": {"mmdit_patch_size": 2, "mmdit_hidden_dim": 8,
        "mmdit_num_layers": 2, "mmdit_num_heads": 2, "mmdit_position_size": 8,
        "mmdit_qk_norm": None, "mmdit_dual_attention_indices": None, "vae": _vae,
        "clip_l": lambda: models.CLIPTextEncoder(**CLIP_TEXT | {"intermediate_output_index": 0}),
        "clip_g": lambda: models.CLIPTextEncoder(**CLIP_TEXT | {"intermediate_output_index": 0}),
        "image_shape": RGB},
    "SwinTransformerBackbone": {"image_shape": RGB, "embed_dim": 8, "depths": [2, 2],
        "num_heads": [1, 2], "window_size": 4},
    "T5Backbone": TEXT,
    "T5GemmaBackbone": T5GEMMA,
    "T5Gemma2Backbone": T5GEMMA,
    "VGGBackbone": {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [4, 8],
        "image_shape": RGB},
    "ViTBackbone": lambda: _vit(),
    "ViTDetBackbone": lambda: _vit_det(),
    "VideoPrismBackbone": {"num_frames": 2, "patch_size": 16, "hidden_dim": 8,
        "intermediate_dim": 16, "num_heads": 2, "num_spatial_layers": 2, "num_temporal_layers": 1,
        "num_auxiliary_layers": 0, "image_shape": RGB},
    "WhisperBackbone": TEXT | {"num_mels": 4, "max_encoder_sequence_length": 16,
        "max_decoder_sequence_length": 16},
    "XLMRobertaBackbone": SHORT,
    "XLNetBackbone": TEXT,
    "XceptionBackbone": {"stackwise_conv_filters": [[8, 8], [16, 16], [16, 16], [8, 16]],
        "stackwise_pooling": [False, True, False, False], "image_shape": RGB},
}
# fmt: on


def _vit():
    given = {name: PATCHES[name] for name in PATCHES if name != "intermediate_dim"}
    return given | {"mlp_dim": 16}


def _vit_det():
    return {
        "hidden_size": 8,
        "num_layers": 2,
        "intermediate_dim": 16,
        "num_heads": 2,
        "global_attention_layer_indices": [1],
        "image_shape": (64, 64, 3),
        "patch_size": 16,
        "num_output_channels": 8,
        "window_size": 2,
    }


# Arguments of tasks beside `backbone`, `preprocessor` and `num_classes`.
TASKS = {
    "DepthAnythingDepthEstimator": {"depth_estimation_type": "relative"},
    "MobileNetImageClassifier": {"num_features": 16},
    "MobileNetV5ImageClassifier": {"head_hidden_size": 16},
    "VGGImageClassifier": {"pooling_hidden_dim": 8},
}
# What a task takes from its preprocessor, where it cannot be without one.
PREPROCESSORS = {
    "PARSeqCausalLM": types.SimpleNamespace(tokenizer=types.SimpleNamespace(pad_token_id=0)),
}
# Classes that are left out, and why.
LEFT_OUT = {
    "Gemma4AssistantCausalLM": "it cannot be called: it drafts tokens for another model",
} | dict.fromkeys(
    (
        "StableDiffusion3Backbone",
        "StableDiffusion3ImageToImage",
        "StableDiffusion3Inpaint",
        "StableDiffusion3TextToImage",
    ),
    "`predict` fails: its scheduler takes the number of steps as a Python number",
)
# Arguments of the backbone of a task that differ from those in `BACKBONES`.
BACKBONES_OF_TASKS = {
    "BLIP2Seq2SeqLM": {
        "language_model": lambda: models.BLIP2FlanT5(
            **TEXT, num_query_tokens=3, qformer_hidden_dim=8, dropout=0.0
        ),
    },
}
# Inputs whose shape cannot be told from that of the model's input, by their names.
SIZES = {
    "encoder_input_values": (1000, 1),
    "points": (1, 2),
    "labels": (1,),
    "masks": (1, 16, 16, 1),
    "boxes": (1, 2, 2),
}
SIZES_OF = {
    "MoonshineBackbone": {"encoder_padding_mask": (1000,)},
    "MoonshineAudioToText": {"encoder_padding_mask": (1000,)},
    "SAM3PromptableConceptBackbone": {"boxes": (1, 5), "box_labels": (1,)},
    "SAM3PromptableConceptImageSegmenter": {"boxes": (1, 5), "box_labels": (1,)},
    "SigLIPBackbone": {"token_ids": (16,)},
    "SigLIPTextEncoder": {"token_ids": (16,)},
}
# The integers that an input may hold begin with 0; these are how many, if not `VOCABULARY`.
NUMBERS = {"segment_ids": 2, "mask_positions": POSITIONS, "position_ids": POSITIONS, "labels": 2}
NUMBERS |= {"box_labels": 2, "num_steps": 2}


def classes():
    """Returns all classes of backbones and tasks that can be built, by name."""
    found = {}
    for name in dir(models):
        kind = getattr(models, name)
        if inspect.isclass(kind) and issubclass(kind, (models.Backbone, models.Task)):
            found[kind.__name__] = kind
    return {name: found[name] for name in sorted(found, key=str.lower) if not is_base(found[name])}


def is_base(kind):
    """Whether a class is a base of others, which says nothing about how a network is built."""
    if issubclass(kind, models.Task):
        return kind.backbone_cls is None
    return kind in (models.Backbone, models.FeaturePyramidBackbone)


def build(name):
    """Returns a model with random weights."""
    keras.utils.set_random_seed(0)
    kind = classes()[name]
    backbone = name if issubclass(kind, models.Backbone) else kind.backbone_cls.__name__
    if backbone not in BACKBONES:
        raise ValueError(f"{name} has no configuration in tests/sources/zoo.py")
    if issubclass(kind, models.Backbone):
        model = _backbone(name)
    else:
        taken = inspect.signature(kind.__init__).parameters
        given = {"num_classes": CLASSES} if "num_classes" in taken else {}
        given |= TASKS.get(name, {})
        backbone = _backbone(kind.backbone_cls.__name__, BACKBONES_OF_TASKS.get(name))
        model = kind(backbone=backbone, preprocessor=PREPROCESSORS.get(name), **given)
        # `predict` would call it.
        model.preprocessor = None
    rng = np.random.default_rng(0)
    for weight in model.weights:
        # Many branches begin with a zero, which would hide that they are computed wrongly.
        if keras.backend.is_float_dtype(weight.dtype):
            noise = rng.normal(0, 0.05, weight.shape)
            is_positive = weight.name == "moving_variance"
            weight.assign(weight.value + (np.abs(noise) if is_positive else noise))
    return model


def _backbone(name, changed=None):
    given = BACKBONES[name]
    given = (given() if callable(given) else given) | (changed or {})
    given = {key: value() if callable(value) else value for key, value in given.items()}
    return getattr(models, name)(**given)


def inputs_of(name, model):
    """Returns inputs of a model: random numbers and ids, the last positions of one are padding."""
    rng = np.random.default_rng(1)

    def drawn(tensor):
        kind = tensor.name
        sizes = (SIZES | SIZES_OF.get(name, {})).get(kind, tensor.shape[1:])
        unknown = POSITIONS - 1 if kind.startswith("decoder") else POSITIONS
        shape = (IMAGES, *(unknown if size is None else size for size in sizes))
        if kind.endswith("mask"):
            values = np.ones(shape)
            values[-1, -2:] = 0
        elif kind == "boxes":
            values = np.full(shape, 0.5)
        elif keras.backend.is_float_dtype(tensor.dtype) and kind != "labels":
            values = rng.normal(size=shape)
        else:
            values = rng.integers(0, NUMBERS.get(kind, VOCABULARY), shape)
        return values.astype(keras.backend.standardize_dtype(tensor.dtype))

    return keras.tree.map_structure(drawn, model.input)


MAIN = (
    "sequence_output",
    "decoder_sequence_output",
    "last_hidden_state",
    "logits",
    "image_embeddings",
)


def with_one_output(model):
    """Returns a model with the main output of a model, and the name of that output.

    Of several outputs in a dict, the main one is the first of `MAIN` that there is, or else the
    last one, as of several in a list.
    """
    outputs = model.output
    if isinstance(outputs, keras.KerasTensor):
        return model, ""
    if not isinstance(outputs, dict):
        return keras.Model(model.input, model.outputs[-1], name=model.name), "the last one"
    name = next((key for key in MAIN if key in outputs), list(outputs)[-1])
    return keras.Model(model.input, outputs[name], name=model.name), name
