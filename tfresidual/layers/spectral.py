"""The norm of a convolution as an operator on its grid.

T is the convolution without bias of an image of height x width pixels, with zero padding "same"
and a stride. Its norm is its largest singular value: the most by which it lengthens an image. The
norm of the kernel reshaped to a matrix is another number, and no bound for this one.

Iterations approach the norm from below: what they give is |T v| for some image v. `residual` says
how far v is from being a singular vector, and `certified_norm` bounds the norm from above.

Kernels have the shape (height, width, channels in, channels out) and images
(batch, height, width, channels), whatever the network's data format. T is `tf.nn.conv2d` and its
transpose `tf.nn.conv2d_transpose` with an explicit output shape: `keras.ops.conv_transpose` takes
none, so that behind a stride of 2 it cannot tell a grid of 7 pixels from one of 8. The rest is
`keras.ops`, except `certified_norm`, which is NumPy in float64. Kernels of other types, as mixed
precision hands them out, are cast to float32.

Example:

>>> kernel = keras.random.normal((3, 3, 16, 16))
>>> vector = singular_vector(kernel, (8, 8), strides=1)
>>> norm = operator_norm(kernel, vector, strides=1)
>>> bool(norm < certified_norm(kernel, (8, 8), strides=1))
True

Reference:
    Gouk et al. 2021, https://arxiv.org/abs/1804.04368: power iteration with a convolution and its
    transpose. Sedghi et al. 2019, https://arxiv.org/abs/1805.10408: the singular values of a
    circular convolution.
"""

import numpy as np
import tensorflow as tf
from keras import ops

# Divisors are at least this, so that 0 / 0 is 0: the smallest float32 of full precision.
TINY = float(np.finfo("float32").tiny)
# Residual at which iterations end.
TOLERANCE = 1e-5
# More than rounding in float64 can take away from a certified norm.
MARGIN = 1e-9
# Phases at the seam of the circular convolutions: 1 and -1.
PHASES = 2


def folded(kernel, input_scale=None, output_scale=None):
    """The kernel of diag(output_scale) T diag(input_scale): T between two batch norms.

    Args:
        kernel: tensor or array, `(height, width, channels in, channels out)`.
        input_scale: `(channels in,)`, gamma / sqrt(variance + epsilon) of the batch norm ahead of
            the convolution, or `None`.
        output_scale: `(channels out,)`, the same of the batch norm behind it, or `None`.

    Returns:
        Kernel of the same shape, an array where all arguments are.
    """
    if input_scale is not None:
        kernel = kernel * input_scale[:, None]
    if output_scale is not None:
        kernel = kernel * output_scale
    return kernel


def power_iteration(kernel, vector, strides, iterations):
    """The unit vector after some steps of v <- T'T v / |T'T v|. No gradients go through.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, any image but zero on the grid of the
            convolution's input. The norm of a 1x1 kernel does not depend on the grid, so that a
            grid of one pixel does.
        strides: int.
        iterations: int, number of steps.

    Returns:
        Unit vector of the same shape: the direction of `vector` itself where T'T takes it to
        zero.
    """
    kernel, _ = _scaled(kernel)
    vector = _unit(_constant(vector))
    for _ in range(iterations):
        following = _unit(_transpose(kernel, _apply(kernel, vector, strides), vector, strides))
        vector = ops.where(ops.any(following != 0), following, vector)
    return vector


def converged(kernel, vector, strides, tolerance=TOLERANCE, most_iterations=500):
    """A unit vector that T lengthens most, to a tolerance. No gradients go through.

    Every step takes the combination of the vector v, its residual T'T v - |T v|^2 v and the
    previous step that T lengthens most: the locally optimal conjugate gradient method. A step of
    power iteration costs half as much, but on large grids the singular values lie so close
    together that it needs many times the steps.

    It stops when `residual` is at most the tolerance. A singular value is then that close to
    |T v|, and |T v| mostly much closer. Nothing in v tells whether it is the largest one. From
    random vectors it is: of 4,000 random kernels on small grids, 2 norms were off by more than
    1e-4. But where v has next to no part in the largest one's singular vector, it stops before it
    gets one: never begin with what has converged for another kernel. In float32 residuals reach
    1e-6; on GPUs that round to TensorFloat-32 they stay above 1e-4 at times, and the iterations
    then end at `most_iterations`.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, where to begin: a random image. One
            that has already converged comes back after one iteration.
        strides: int.
        tolerance: float, the residual to stop at.
        most_iterations: int, when to stop in any case.

    Returns:
        The unit vector, of the shape of `vector`, and the number of times that T'T was applied,
        int32.

    Reference:
        Knyazev 2001, https://doi.org/10.1137/S1064827500366124 (LOBPCG), for one vector.
    """
    kernel, _ = _scaled(kernel)
    vector = _unit(_constant(vector))

    def unfinished(vector, step, remainder, error, iterations):
        return error > tolerance

    def improve(vector, step, remainder, error, iterations):
        basis = _orthonormal(vector, remainder, step)
        images = _apply(kernel, basis, strides)
        rows = ops.reshape(images, (3, -1))
        _, mixtures = ops.eigh(ops.matmul(rows, ops.transpose(rows)))
        # The eigenvalues ascend.
        shares = ops.reshape(mixtures[:, -1], (3, 1, 1, 1))
        vector = ops.sum(shares * basis, axis=0, keepdims=True)
        step = ops.sum((shares * basis)[1:], axis=0, keepdims=True)
        image = ops.sum(shares * images, axis=0, keepdims=True)
        return vector, step, *_residual(kernel, vector, image, strides), iterations + 1

    remainder, error = _residual(kernel, vector, _apply(kernel, vector, strides), strides)
    vector, *_, iterations = ops.while_loop(
        unfinished,
        improve,
        (vector, ops.zeros_like(vector), remainder, error, ops.convert_to_tensor(1, "int32")),
        maximum_iterations=most_iterations - 1,
    )
    return vector, iterations


# Not inlined: a graph may call it once for every convolution.
@tf.function(experimental_attributes={"_noinline": True})
def singular_vector(kernel, grid, strides):
    """`converged` from noise: the same vector for the same kernel, whatever was known before.

    Never from the vector of another kernel, however close: where weights have been pruned, scaled
    or set, that may be a singular vector still, and no longer the one of the largest value.
    Compiled, once for every shape of kernel and grid. No gradients go through.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        grid: pair of ints, height and width of the convolution's input.
        strides: int.

    Returns:
        Unit vector, `(1, height, width, channels in)`.
    """
    return converged(kernel, noise((1, *grid, kernel.shape[2])), strides)[0]


def noise(shape):
    """A unit vector with a part of every singular vector, the same for the same shape."""
    # The one algorithm that gives the same numbers under XLA.
    return _unit(tf.random.stateless_uniform(shape, seed=(0, 0), minval=-1, alg="philox"))


def operator_norm(kernel, vector, strides):
    """|T v|, the norm of T where v is its first right singular vector, and less otherwise.

    The vector is a constant: the gradient is that of <u, T v>, with u = T v / |T v| constant too.
    With the singular vector this is the gradient of the norm. Where T v is zero, so is the
    gradient.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, a unit vector.
        strides: int.

    Returns:
        float32, at least 0.
    """
    kernel = ops.cast(kernel, "float32")
    vector = _constant(vector)
    constant, scale = _scaled(kernel)
    image = _apply(constant, vector, strides)
    # Zero in value, and the gradient that the function has, whatever the size of the kernel.
    change = _apply(kernel - ops.stop_gradient(kernel), vector, strides)
    return scale * _length(image) + ops.sum(_unit(image) * change)


def residual(kernel, vector, strides):
    """|T'T v - s^2 v| / s^2 with s = |T v|: zero for a singular vector, and where T v is zero.

    A singular value lies within about half of this from s, relatively.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, a unit vector.
        strides: int.

    Returns:
        float32, at least 0.
    """
    kernel, _ = _scaled(kernel)
    vector = _constant(vector)
    return _residual(kernel, vector, _apply(kernel, vector, strides), strides)[1]


def certified_norm(kernel, grid, strides):
    """A number that the norm of T never exceeds, close to it where the grid is not tiny.

    A convolution around a torus a little larger than the grid takes images that are zero outside
    the grid to what T gives, and more beside it: its norm is at least that of T. It is the
    largest norm of the kernel's symbols, small matrices, one for every frequency of the torus.
    That remains true where the torus changes the sign across its seam, which moves the
    frequencies by half a step. And it remains true of each frequency along one axis by itself,
    so that the seam of the other axis may be chosen for each of them.

    Measured: 0 to 3% above the norm on grids of 8x8 to 32x32 with 16 to 64 channels; 1 to 5% in
    the median and at most 40% on grids of 3x3 to 8x8 with up to 4 channels. Four phases at the
    seams make four times the work and a third less excess on tiny grids, larger tori no
    difference worth the time. The bound is exact for 1x1 kernels.

    Args:
        kernel: array or tensor, `(height, width, channels in, channels out)`.
        grid: pair of ints, height and width of the convolution's input.
        strides: int.

    Returns:
        float, at least 0; NaN or infinity where the kernel holds one.
    """
    kernel = np.asarray(ops.convert_to_numpy(kernel), "float64")
    tori = [
        _torus(size, pixels, strides) for size, pixels in zip(kernel.shape[:2], grid, strict=True)
    ]
    (rows, height), (columns, width) = tori
    kernel = kernel[rows, columns]
    largest = np.abs(kernel).max()
    if largest == 0 or not np.isfinite(largest):
        return float(largest)
    norms = _symbol_norms(kernel / largest, strides, height, width)
    # Axes: row frequency, seam, column frequency, seam.
    along_columns = norms.max(axis=2).min(axis=2).max(axis=0).min()
    along_rows = norms.max(axis=0).min(axis=0).max(axis=0).min()
    return float(largest * min(along_columns, along_rows) * (1 + MARGIN))


def _apply(kernel, vectors, strides):
    """T of every vector of a batch."""
    if kernel.shape[:2] == (1, 1):
        # Not left to the convolution, for the reason that `PointwiseConvolution` gives.
        vectors, strides = vectors[:, ::strides, ::strides], 1
    return tf.nn.conv2d(vectors, kernel, strides, "SAME")


def _transpose(kernel, images, vector, strides):
    """T' of images, on the grid of `vector`."""
    return tf.nn.conv2d_transpose(images, kernel, ops.shape(vector), strides, "SAME")


def _residual(kernel, vector, image, strides):
    """T'T v - |T v|^2 v and its relative length, for `image` = T v."""
    square = ops.sum(image**2)
    remainder = _transpose(kernel, image, vector, strides) - square * vector
    return remainder, _length(remainder) / ops.maximum(square, TINY)


def _constant(tensor):
    return ops.stop_gradient(ops.cast(tensor, "float32"))


def _scaled(kernel):
    """The kernel as a constant whose largest entry is 1, and the factor that this takes off."""
    kernel = _constant(kernel)
    scale = ops.maximum(ops.max(ops.abs(kernel)), TINY)
    return kernel / scale, scale


def _unit(vector):
    """Vector of length 1, or zero for zero; tiny entries are not lost when they are squared."""
    vector = vector / ops.maximum(ops.max(ops.abs(vector)), TINY)
    # With an entry of 1 it is no shorter than 1. XLA multiplies the two divisors.
    return vector / ops.maximum(ops.sqrt(ops.sum(vector**2)), 1)


def _length(vector):
    scale = ops.maximum(ops.max(ops.abs(vector)), TINY)
    return scale * ops.sqrt(ops.sum((vector / scale) ** 2))


def _orthonormal(*vectors):
    """Batch of as many orthogonal vectors, of length 1 or 0, that span the same space."""
    basis = []
    for vector in vectors:
        # A second time for what rounding has left of the others in a short remainder.
        for _ in range(2):
            vector = _unit(vector)
            vector = vector - sum(ops.sum(vector * other) * other for other in basis)
        basis.append(_unit(vector))
    return ops.concatenate(basis, axis=0)


def _torus(size, pixels, strides):
    """One axis of the smallest torus around a grid.

    Args:
        size: int, number of the kernel's entries along the axis, its taps.
        pixels: int, number of pixels of the grid along the axis.
        strides: int.

    Returns:
        Slice of the taps that reach into the grid at all, and the number of outputs around the
        torus, on which no tap reaches from one side of the grid across the seam to the other.
    """
    outputs = -(-pixels // strides)
    # Output i reads the pixels strides * i + tap - before: TensorFlow's padding.
    before = max((outputs - 1) * strides + size - pixels, 0) // 2
    first = max(before - (outputs - 1) * strides, 0)
    last = min(before + pixels - 1, size - 1)
    if first == last:
        # The symbol of one tap has the same norm at all frequencies.
        return slice(first, last + 1), 1
    # The torus ends with the last pixel that an output reads. What is read ahead of the grid lies
    # at that end of the torus, and misses the grid as well: TensorFlow pads no more ahead of the
    # grid than behind it.
    around = (outputs - 1) * strides + last - before + 1
    return slice(first, last + 1), -(-around // strides)


def _symbol_norms(kernel, strides, height, width):
    """Norms of the symbols on a torus of height x width outputs, with every phase at its seams.

    The pixels of every strides x strides square are taken as channels of one pixel. The stride is
    then 1, and the symbol at a frequency is the sum of the kernel's matrices, each turned by the
    phase that the frequency has at its place.

    Returns:
        `(height, PHASES, width, PHASES)`: row frequency, phase, column frequency, phase.
    """
    kernel = np.pad(kernel, [(0, -size % strides) for size in kernel.shape[:2]] + [(0, 0)] * 2)
    high, wide, inputs, outputs = kernel.shape
    high, wide, inputs = high // strides, wide // strides, inputs * strides**2
    kernel = kernel.reshape(high, strides, wide, strides, -1, outputs)
    kernel = kernel.transpose(0, 2, 1, 3, 4, 5).reshape(high, wide, inputs, outputs)
    if inputs < outputs:
        kernel = kernel.swapaxes(2, 3)
    frequencies = [np.arange(PHASES * count) / (PHASES * count) for count in (height, width)]
    row_turns = np.exp(2j * np.pi * np.outer(frequencies[0], np.arange(high)))
    column_turns = np.exp(2j * np.pi * np.outer(frequencies[1], np.arange(wide)))
    squares = np.empty((PHASES * height, PHASES * width))
    opposite = -np.arange(PHASES * width)
    for row in range(PHASES * height // 2 + 1):
        symbols = np.tensordot(column_turns, np.tensordot(row_turns[row], kernel, 1), 1)
        # The smaller of the two products with the adjoint.
        products = symbols.conj().swapaxes(1, 2) @ symbols
        squares[row] = np.linalg.eigvalsh(products)[:, -1]
        # A real kernel has conjugate symbols at opposite frequencies.
        squares[-row] = squares[row, opposite]
    return np.sqrt(squares).reshape(height, PHASES, width, PHASES)
