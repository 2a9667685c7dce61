"""All backbones and tasks of keras-hub, built as small as they go, without a download.

The classes are those that `keras_hub.models` has. An argument has its value in `SMALL`, whatever
takes it; `BACKBONES` and `TASKS` say what differs.
"""

import functools
import inspect
import types

import keras
import keras_hub
import numpy as np

models = keras_hub.models

IMAGES, POSITIONS, VOCABULARY, CLASSES = 2, 6, 24, 3
SIDE = 32
RGB, LARGE = (SIDE, SIDE, 3), (64, 64, 3)

# Also of arguments that begin with "encoder_" or "decoder_".
SMALL = (
    dict.fromkeys(("vocabulary_size", "vocab_size", "vocab_size_per_layer_input"), VOCABULARY)
    | dict.fromkeys(("hidden_dim", "hidden_size", "embedding_dim", "projection_dim"), 8)
    | dict.fromkeys(("moe_intermediate_dim", "shared_expert_intermediate_size"), 8)
    | dict.fromkeys(("intermediate_dim", "mlp_dim", "max_sequence_length", "patch_size"), 16)
    | dict.fromkeys(("num_layers", "num_hidden_layers", "num_heads", "num_query_heads"), 2)
    | dict.fromkeys(("num_attention_heads", "num_experts"), 2)
    | dict.fromkeys(("num_key_value_heads", "top_k"), 1)
    | dict.fromkeys(("head_dim", "head_size"), 4)
    | {"shared_expert_intermediate_dim": 8, "image_shape": RGB, "image_size": SIDE}
    | {"num_query_tokens": 3, "qformer_hidden_dim": 8}
)


# Of an argument that keeps its default.
OMITTED = object()


def later(name, **changed):
    """A function that builds a part with other arguments."""
    return functools.partial(made, name, **changed)


def made(name, **changed):
    """A backbone, or a layer, with the arguments of `SMALL` and `BACKBONES`, and others."""
    kind = getattr(models, name, None) or getattr(keras_hub.layers, name)
    given = {}
    for taken in inspect.signature(kind.__init__).parameters:
        for known in (taken, taken.removeprefix("encoder_").removeprefix("decoder_")):
            if known in SMALL:
                given.setdefault(taken, SMALL[known])
    given |= BACKBONES.get(name, {}) | changed
    given = {key: value() if callable(value) else value for key, value in given.items()}
    return kind(**{key: value for key, value in given.items() if value is not OMITTED})


FULL = ["full_attention"] * 2

# fmt: off
# The arguments of a backbone that `SMALL` does not have; those that are functions are called.
BACKBONES = {
    "AlbertBackbone": {"embedding_dim": 4},
    "BASNetBackbone": {"image_encoder": later("ResNetBackbone", input_conv_kernel_sizes=[7],
        stackwise_num_filters=[64, 128, 256, 512], stackwise_num_blocks=[2, 2, 2, 2],
        image_shape=OMITTED), "num_classes": 1, "image_shape": LARGE},
    "BLIP2Backbone": {"vision_encoder": later("BLIP2VisionEncoder", use_patch_bias=True,
        use_class_token=True, use_mha_bias=True, use_mlp_bias=True, dropout_rate=0.0,
        layer_norm_epsilon=1e-06, initializer_range=0.02), "qformer": later("BLIP2QFormer",
        vision_dim=8, cross_attention_frequency=2, dropout=0.0, layer_norm_epsilon=1e-06),
        "language_model": later("BLIP2CustomOPT", dropout=0.0)},
    "CSPNetBackbone": {"stem_filters": 8, "stem_kernel_size": 3, "stem_strides": 1,
        "stackwise_depth": [1, 2], "stackwise_strides": [1, 2], "stackwise_num_filters": [8, 16],
        "block_type": "dark_block", "stage_type": "csp", "block_ratio": [0.5]},
    "DFineBackbone": {"backbone": later("HGNetV2Backbone", image_shape=(None, None, 3),
        out_features=["stage1", "stage2"]), "decoder_in_channels": [8, 8], "num_denoising": 0,
        "num_labels": CLASSES, "learn_initial_query": False, "num_queries": 4,
        "anchor_image_size": (SIDE, SIDE), "feat_strides": [4, 8], "num_feature_levels": 2,
        "encoder_in_channels": [8, 16], "encode_proj_layers": [1], "num_attention_heads": 2,
        "encoder_ffn_dim": 16, "num_encoder_layers": 1, "hidden_expansion": 0.5,
        "depth_multiplier": 0.5, "eval_idx": -1, "num_decoder_layers": 2,
        "decoder_attention_heads": 2, "decoder_ffn_dim": 16, "decoder_n_points": [2, 2],
        "lqe_hidden_dim": 8, "num_lqe_layers": 2, "out_features": ["stage1", "stage2"], "seed": 0},
    "DINOV2Backbone": {"position_embedding_shape": RGB},
    "DebertaV3Backbone": {"bucket_size": 4},
    "DeepLabV3Backbone": {"image_encoder": later("ResNetBackbone", image_shape=LARGE),
        "spatial_pyramid_pooling_key": "P5", "low_level_feature_key": "P2", "upsampling_size": 8,
        "dilation_rates": [2, 3], "projection_filters": 8, "image_shape": LARGE},
    "DenseNetBackbone": {"stackwise_num_repeats": [1, 2], "growth_rate": 4},
    "DepthAnythingBackbone": {"image_encoder": later("DINOV2Backbone", num_layers=4, patch_size=14,
        image_shape=(84, 84, 3)), "reassemble_factors": [4, 2, 1, 0.5],
        "neck_hidden_dims": [8, 8, 8, 8], "fusion_hidden_dim": 8, "head_hidden_dim": 4,
        "head_in_index": -1, "feature_keys": ["stage1", "stage2", "stage3", "stage4"]},
    "EdRecBackbone": {"num_layers_enc": 2, "num_layers_dec": 2},
    "EfficientNetBackbone": {"stackwise_width_coefficients": [1.0, 1.0],
        "stackwise_depth_coefficients": [1.0, 1.0], "stackwise_kernel_sizes": [3, 3],
        "stackwise_num_repeats": [2, 2], "stackwise_input_filters": [8, 8],
        "stackwise_output_filters": [8, 16], "stackwise_expansion_ratios": [1, 4],
        "stackwise_squeeze_and_excite_ratios": [0.25, 0.25], "stackwise_strides": [1, 2],
        "stackwise_block_types": ["fused", "unfused"], "stackwise_force_input_filters": [0, 0],
        "stackwise_nores_option": [False, False], "num_features": 16, "input_shape": RGB},
    "FalconBackbone": {"intermediate_dim": 32},
    "FluxBackbone": {"input_channels": 4, "mlp_ratio": 2.0, "depth": 2, "depth_single_blocks": 3,
        "axes_dim": [2, 2], "theta": 100, "use_bias": True, "image_shape": (4, 4),
        "text_shape": (POSITIONS, 8), "image_ids_shape": (4, 2), "text_ids_shape": (POSITIONS, 2),
        "y_shape": (8,)},
    "GPTNeoXBackbone": {"rotary_percentage": 0.5},
    "Gemma3Backbone": {"embedding_dim": OMITTED},
    "Gemma3nBackbone": {"text_vocab_size": VOCABULARY, "text_hidden_size": 8, "pad_token_id": 0,
        "intermediate_size": [16, 16], "hidden_activation": "gelu_approximate",
        "layer_types": FULL, "sliding_window": 4, "rope_theta": 10000.0,
        "max_position_embeddings": 16, "hidden_size_per_layer_input": 4, "altup_num_inputs": 2,
        "laurel_rank": 2},
    "Gemma4Backbone": {"embedding_dim": OMITTED, "num_experts": OMITTED},
    "HGNetV2Backbone": {"depths": [1, 2], "embedding_size": 8, "hidden_sizes": [8, 16],
        "stem_channels": [3, 8, 8], "hidden_act": "relu", "use_learnable_affine_block": True,
        "stackwise_stage_filters": [(8, 8, 8, 1, 1, 3), (8, 8, 16, 2, 1, 3)],
        "apply_downsample": [False, True], "use_lightweight_conv_block": [False, True]},
    "MiTBackbone": {"hidden_dims": [8, 16], "layerwise_depths": [1, 2],
        "layerwise_num_heads": [1, 2], "layerwise_sr_ratios": [2, 1],
        "layerwise_patch_sizes": [7, 3], "layerwise_strides": [4, 2], "max_drop_path_rate": 0.1},
    "MistralBackbone": {"head_dim": OMITTED},
    "MobileNetBackbone": {"stackwise_expansion": [[8, 16], [16, 16]],
        "stackwise_num_blocks": [2, 2], "stackwise_num_filters": [[8, 8], [16, 16]],
        "stackwise_kernel_size": [[3, 3], [3, 3]], "stackwise_num_strides": [[1, 1], [2, 1]],
        "stackwise_se_ratio": [[None, None], [0.25, 0.25]],
        "stackwise_activation": [["relu", "relu"], ["relu", "relu"]], "stackwise_padding": [[1, 1],
        [1, 1]], "output_num_filters": 16, "depthwise_filters": 16, "depthwise_stride": 1,
        "depthwise_residual": True, "last_layer_filter": 16},
    "MobileNetV5Backbone": {"stackwise_block_types": [["er"], ["uir", "uir"]],
        "stackwise_num_blocks": [1, 2], "stackwise_num_filters": [[8], [16, 16]],
        "stackwise_strides": [[2], [2, 1]], "stackwise_act_layers": [["relu"], ["relu", "relu"]],
        "stackwise_exp_ratios": [[4.0], [4.0, 4.0]], "stackwise_se_ratios": [[0.0], [0.0, 0.0]],
        "stackwise_dw_kernel_sizes": [[0], [5, 5]], "stackwise_exp_kernel_sizes": [[3], [0, 0]],
        "stackwise_pw_kernel_sizes": [[1], [0, 0]], "stackwise_use_cpe": [[False], [False, False]],
        "use_msfa": False, "num_features": 16} | {f"stackwise_{name}": [[0], [0, 0]] for name in
        ("dw_start_kernel_sizes", "dw_end_kernel_sizes", "num_heads", "key_dims", "value_dims",
        "kv_strides")},
    "MoonshineBackbone": {"filter_dim": 8},
    "PARSeqBackbone": {"image_encoder": later("ViTBackbone"), "max_label_length": POSITIONS,
        "num_decoder_layers": 2, "num_decoder_heads": 2, "decoder_mlp_dim": 16},
    "PaliGemmaBackbone": {"vit_patch_size": 16, "vit_num_heads": 2, "vit_hidden_dim": 8,
        "vit_num_layers": 1, "vit_intermediate_dim": 16},
    "Phi3Backbone": {"max_sequence_length": OMITTED},
    "RWKV7Backbone": {"gate_lora": 4, "mv_lora": 4, "aaa_lora": 4, "decay_lora": 4},
    "ResNetBackbone": {"input_conv_filters": [64], "input_conv_kernel_sizes": [3],
        "stackwise_num_filters": [64, 8, 8, 16], "stackwise_num_blocks": [1, 2, 2, 1],
        "stackwise_num_strides": [1, 2, 2, 2], "block_type": "basic_block"},
    "RetinaNetBackbone": {"image_encoder": later("ResNetBackbone", image_shape=LARGE),
        "min_level": 3, "max_level": 5, "use_p5": False, "image_shape": LARGE},
    "SAM3PromptableConceptBackbone": {"vision_encoder": later("SAM3VisionEncoder",
        image_shape=(56, 56, 3), patch_size=14, fpn_hidden_dim=8,
        fpn_scale_factors=[4.0, 2.0, 1.0, 0.5], pretrain_image_shape=(28, 28, 3), window_size=2,
        global_attn_indexes=[1]), "text_encoder": later("SAM3TextEncoder"),
        "geometry_encoder": later("SAM3GeometryEncoder", roi_size=3),
        "detr_encoder": later("SAM3DetrEncoder"), "detr_decoder": later("SAM3DetrDecoder",
        image_shape=(56, 56, 3), patch_size=14, num_queries=4),
        "mask_decoder": later("SAM3MaskDecoder", num_upsampling_stages=3)},
    "SAMBackbone": {"image_encoder": later("ViTDetBackbone"),
        "prompt_encoder": later("SAMPromptEncoder", image_embedding_size=(4, 4),
        input_image_size=(64, 64), mask_in_channels=16), "mask_decoder": later("SAMMaskDecoder",
        num_multimask_outputs=3, iou_head_depth=2, iou_head_hidden_dim=8)},
    "SegFormerBackbone": {"image_encoder": later("MiTBackbone"), "projection_filters": 8},
    "SmolLM3Backbone": {"attention_bias": False, "attention_dropout": 0.0,
        "rope_layer_enabled_list": [True, True], "layer_types": ["attention", "attention"],
        "mlp_bias": False, "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16,
        "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "SwinTransformerBackbone": {"embed_dim": 8, "depths": [2, 2], "num_heads": [1, 2],
        "window_size": 4, "patch_size": OMITTED},
    "VGGBackbone": {"stackwise_num_repeats": [1, 1], "stackwise_num_filters": [4, 8]},
    "ViTDetBackbone": {"global_attention_layer_indices": [1], "image_shape": LARGE,
        "num_output_channels": 8, "window_size": 2},
    "VideoPrismBackbone": {"num_frames": 2, "num_spatial_layers": 2, "num_temporal_layers": 1,
        "num_auxiliary_layers": 0, "vocabulary_size": OMITTED},
    "WhisperBackbone": {"num_mels": 4, "max_encoder_sequence_length": 16,
        "max_decoder_sequence_length": 16},
    "XceptionBackbone": {"stackwise_conv_filters": [[8, 8], [16, 16], [16, 16], [8, 16]],
        "stackwise_pooling": [False, True, False, False]},
} | {f"{kind}Backbone": {f"{part.lower()}_encoder": later(f"{kind}{part}Encoder")
        for part in ("Vision", "Text")} for kind in ("CLIP", "MetaCLIP2", "SigLIP")
} | {f"{kind}Backbone": {"encoder_layer_types": FULL, "decoder_layer_types": FULL}
        for kind in ("T5Gemma", "T5Gemma2")
} | {f"{kind}Backbone": {"layer_types": ["linear_attention", "full_attention"], "head_dim": 8,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 4,
        "linear_value_head_dim": 4} for kind in ("Qwen3_5", "Qwen3_5Moe")}
# fmt: on


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
    "BLIP2Seq2SeqLM": {"language_model": later("BLIP2FlanT5", dropout=0.0)},
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
    if issubclass(kind, models.Backbone):
        model = made(name)
    else:
        taken = inspect.signature(kind.__init__).parameters
        given = {"num_classes": CLASSES} if "num_classes" in taken else {}
        given |= TASKS.get(name, {})
        backbone = made(kind.backbone_cls.__name__, **BACKBONES_OF_TASKS.get(name, {}))
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
