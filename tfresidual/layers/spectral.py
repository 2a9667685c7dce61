"""Norm of a convolution as a linear operator on its grid.

T is the convolution without bias of an image of height x width pixels, with zero padding "same" and
a stride. Its norm is its largest singular value: the largest factor by which it lengthens an image.
The norm of the kernel reshaped to a matrix is a different number and does not bound it.

Iterations approach the norm from below: they give |T v| for some unit vector v. `residual` measures
how far v is from a singular vector, and `certified_norm` bounds the norm from above.

Kernels have the shape (height, width, channels in, channels out) and images (batch, height, width,
channels), whatever the network's data format. Everything uses `keras.ops`, on every backend of
Keras, except `certified_norm`, which uses NumPy in float64. The transpose of T is the convolution
with the reversed kernel of an image that is padded, and spread if there is a stride:
`keras.ops.conv_transpose` does not take an output shape, so with a stride of 2 it cannot
distinguish a grid of 7 pixels from one of 8. Kernels of other dtypes, as in mixed precision, are
cast to float32.

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

import math

import numpy as np
from keras import ops

from tfresidual.machine.backends import compiled

# Lower bound of all divisors, so that 0 / 0 gives 0: the smallest normal float32.
TINY = float(np.finfo("float32").tiny)
# Residual at which iterations stop.
TOLERANCE = 1e-5
# Relative margin, larger than any rounding error of a certified norm in float64.
MARGIN = 1e-9
# Shifts and factors of the hash that gives the initial vectors; factors are of signed integers.
HASH = ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32), (16, 1))
# Number of phases at the seam of the circular convolutions: 1 and -1.
PHASES = 2


def folded(kernel, input_scale=None, output_scale=None):
    """Returns the kernel of diag(output_scale) T diag(input_scale): T between two batch norms.

    Args:
        kernel: tensor or array, `(height, width, channels in, channels out)`.
        input_scale: `(channels in,)`, gamma / sqrt(variance + epsilon) of the batch norm before the
            convolution, or `None`.
        output_scale: `(channels out,)`, the same for the batch norm after it, or `None`.

    Returns:
        Kernel of the same shape; an array if all arguments are arrays.
    """
    if input_scale is not None:
        kernel = kernel * input_scale[:, None]
    if output_scale is not None:
        kernel = kernel * output_scale
    return kernel


def power_iteration(kernel, vector, strides, iterations):
    """Returns the unit vector after some steps of v <- T'T v / |T'T v|, without gradients.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, any nonzero image on the grid of the
            convolution's input. The norm of a 1x1 kernel does not depend on the grid, so a grid of
            one pixel is enough.
        strides: int.
        iterations: int, number of steps.

    Returns:
        Unit vector of the same shape. If T'T maps `vector` to zero, the direction of `vector`
        itself.
    """
    kernel, _ = _scaled(kernel)
    vector = _unit(_constant(vector))
    for _ in range(iterations):
        following = _unit(_transpose(kernel, _apply(kernel, vector, strides), vector, strides))
        vector = ops.where(ops.any(following != 0), following, vector)
    return vector


def converged(kernel, vector, strides, tolerance=TOLERANCE, most_iterations=500):
    """Returns a unit vector that T lengthens most, to a tolerance, without gradients.

    Each iteration takes the linear combination of three vectors that T lengthens most: the vector
    v, its residual T'T v - |T v|^2 v, and the previous change of v. This is the locally optimal
    conjugate gradient method. An iteration of the power method costs half as much, but on large
    grids the singular values are so close together that it needs many times more iterations.

    It stops when `residual` is at most the tolerance. Some singular value is then within about that
    relative distance of |T v|, and mostly much closer. The vector v does not show whether this is
    the largest singular value. With random initial vectors it almost always is: of 4,000 random
    kernels on small grids, 2 norms were off by more than 1e-4. But if the initial v has almost no
    component along the singular vector of the largest value, the iteration stops before that
    component has grown. Never start from a vector that has converged for another kernel. In
    float32, residuals reach 1e-6; on GPUs that round to TensorFloat-32 they sometimes stay above
    1e-4, and the iterations then stop at `most_iterations`.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        vector: float32, `(1, height, width, channels in)`, the initial vector, a random image. A
            vector that has already converged is returned after one iteration.
        strides: int.
        tolerance: float, the residual at which to stop.
        most_iterations: int, the largest number of iterations.

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
        # The eigenvalues are in ascending order.
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


@compiled("grid", "strides")
def singular_vector(kernel, grid, strides):
    """Runs `converged` from noise. The same kernel always gives the same vector.

    It never starts from the vector of another kernel, however similar: after weights have been
    pruned, scaled or set, that may still be a singular vector, but no longer that of the largest
    value. Compiled once for every shape of kernel and grid. No gradients flow through it.

    Args:
        kernel: float32, `(height, width, channels in, channels out)`.
        grid: pair of ints, height and width of the convolution's input.
        strides: int.

    Returns:
        Unit vector, `(1, height, width, channels in)`.
    """
    return converged(kernel, noise((1, *grid, kernel.shape[2])), strides)[0]


def noise(shape):
    """Returns a random unit vector, always the same for the same shape.

    The bits are a hash of the place, computed in integers, which every backend of Keras, compiled
    or not, computes alike.

    Reference:
        Wellons 2018, https://github.com/skeeto/hash-prospector (lowbias32).
    """
    bits = ops.arange(1, math.prod(shape) + 1, dtype="int32")
    for shift, factor in HASH:
        # The shift of an unsigned integer: the bits that enter on the left are zeros.
        moved = ops.bitwise_and(ops.bitwise_right_shift(bits, shift), 2 ** (32 - shift) - 1)
        bits = ops.bitwise_xor(bits, moved) * factor
    # The lower bits of a product are less random.
    values = ops.cast(ops.bitwise_right_shift(bits, 8), "float32") / 2**23
    return _unit(ops.reshape(values, shape))


def operator_norm(kernel, vector, strides):
    """Returns |T v|: the norm of T if v is its first right singular vector, at most that otherwise.

    The vector is treated as a constant: the gradient is that of <u, T v>, with u = T v / |T v| also
    constant. For the singular vector this is the gradient of the norm. If T v is zero, so is the
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
    # Zero in value, but carries the gradient, whatever the magnitude of the kernel.
    change = _apply(kernel - ops.stop_gradient(kernel), vector, strides)
    return scale * _length(image) + ops.sum(_unit(image) * change)


def residual(kernel, vector, strides):
    """Returns |T'T v - s^2 v| / s^2 with s = |T v|: zero for a singular vector or if T v is zero.

    Some singular value has a relative distance from s of at most about half of this.

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
    """Returns an upper bound of the norm of T, close to it unless the grid is tiny.

    Consider the convolution on a torus a little larger than the grid. For images that are zero
    outside the grid, its output contains the output of T and further pixels, so its norm is at
    least that of T. Its norm is the largest norm of the kernel's symbols, which are small matrices,
    one for every frequency of the torus. The same holds if the sign changes across the seam of the
    torus, which shifts the frequencies by half a step. It also holds for each frequency along one
    axis separately, so the sign at the seam of the other axis may be chosen for each of them.

    Measured: 0 to 3% above the norm on grids of 8x8 to 32x32 with 16 to 64 channels; 1 to 5% in the
    median and at most 40% on grids of 3x3 to 8x8 with up to 4 channels. Four phases at the seams
    take four times the work and reduce the excess by a third on tiny grids; larger tori make no
    difference worth the time. The bound is exact for 1x1 kernels.

    Args:
        kernel: array or tensor, `(height, width, channels in, channels out)`.
        grid: pair of ints, height and width of the convolution's input.
        strides: int.

    Returns:
        float, at least 0; NaN or infinity if the kernel contains one.
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
    """Applies T to every vector of a batch."""
    if kernel.shape[:2] == (1, 1):
        # Strides are applied here, not in the convolution, for the reason given in
        # `PointwiseConvolution`.
        vectors, strides = vectors[:, ::strides, ::strides], 1
    return ops.conv(vectors, kernel, strides, "same", data_format="channels_last")


def _transpose(kernel, images, vector, strides):
    """Applies T' to images; the result is on the grid of `vector`."""
    pads = [(0, 0), (0, 0), (0, 0), (0, 0)]
    for axis, pixels in enumerate(vector.shape[1:3], start=1):
        taps, rows = kernel.shape[axis - 1], images.shape[axis]
        spread = (rows - 1) * strides + 1
        # What "same" pads in front of the images that T takes.
        front = max(spread - 1 + taps - pixels, 0) // 2
        images = _spread(images, strides, axis)
        pads[axis] = (taps - 1 - front, pixels + front - spread)
    reversed_kernel = ops.transpose(ops.flip(kernel, (0, 1)), (0, 1, 3, 2))
    return ops.conv(ops.pad(images, pads), reversed_kernel, data_format="channels_last")


def _spread(images, strides, axis):
    """Puts `strides - 1` zeros between neighbours along an axis."""
    if strides == 1:
        return images
    images = ops.expand_dims(images, axis + 1)
    pads = [(0, 0)] * len(images.shape)
    pads[axis + 1] = (0, strides - 1)
    images = ops.pad(images, pads)
    shape = list(images.shape)
    shape[axis : axis + 2] = [shape[axis] * strides]
    images = ops.reshape(images, shape)
    return images[(slice(None),) * axis + (slice(shape[axis] - strides + 1),)]


def _residual(kernel, vector, image, strides):
    """Returns T'T v - |T v|^2 v and its relative length, for `image` = T v."""
    square = ops.sum(image**2)
    remainder = _transpose(kernel, image, vector, strides) - square * vector
    return remainder, _length(remainder) / ops.maximum(square, TINY)


def _constant(tensor):
    return ops.stop_gradient(ops.cast(tensor, "float32"))


def _scaled(kernel):
    """Returns the kernel as a constant, divided by its largest absolute entry, and that entry."""
    kernel = _constant(kernel)
    scale = ops.maximum(ops.max(ops.abs(kernel)), TINY)
    return kernel / scale, scale


def _unit(vector):
    """Scales a vector to length 1 without underflow of tiny entries; zero remains zero."""
    vector = vector / ops.maximum(ops.max(ops.abs(vector)), TINY)
    # With an entry of 1 its length is at least 1. The maximum is there because XLA multiplies the
    # two divisors.
    return vector / ops.maximum(ops.sqrt(ops.sum(vector**2)), 1)


def _length(vector):
    scale = ops.maximum(ops.max(ops.abs(vector)), TINY)
    return scale * ops.sqrt(ops.sum((vector / scale) ** 2))


def _orthonormal(*vectors):
    """Returns a batch of equally many orthogonal vectors, of length 1 or 0, with the same span."""
    basis = []
    for vector in vectors:
        # The second pass removes what rounding has left of the other vectors in a short remainder.
        for _ in range(2):
            vector = _unit(vector)
            vector = vector - sum(ops.sum(vector * other) * other for other in basis)
        basis.append(_unit(vector))
    return ops.concatenate(basis, axis=0)


def _torus(size, pixels, strides):
    """Returns one axis of the smallest torus around a grid.

    Args:
        size: int, number of the kernel's entries (taps) along the axis.
        pixels: int, number of pixels of the grid along the axis.
        strides: int.

    Returns:
        Slice of the taps that reach into the grid at all, and the number of outputs around the
        torus. On this torus, no tap reaches across the seam from one side of the grid to the other.
    """
    outputs = -(-pixels // strides)
    # Output i reads the pixels strides * i + tap - before: TensorFlow's padding.
    before = max((outputs - 1) * strides + size - pixels, 0) // 2
    first = max(before - (outputs - 1) * strides, 0)
    last = min(before + pixels - 1, size - 1)
    if first == last:
        # The symbol of a single tap has the same norm at all frequencies.
        return slice(first, last + 1), 1
    # The torus ends with the last pixel that an output reads. Pixels read before the grid wrap
    # around to that end of the torus and are outside the grid as well, since TensorFlow never pads
    # more before the grid than after it.
    around = (outputs - 1) * strides + last - before + 1
    return slice(first, last + 1), -(-around // strides)


def _symbol_norms(kernel, strides, height, width):
    """Returns the norms of the symbols on a torus of height x width outputs, for all seam phases.

    The pixels of every strides x strides square become channels of one pixel, so that the stride is
    1. The symbol at a frequency is then the sum of the kernel's matrices, each multiplied by the
    phase of the frequency at its position.

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
        # This is the smaller of the two products with the adjoint.
        products = symbols.conj().swapaxes(1, 2) @ symbols
        squares[row] = np.linalg.eigvalsh(products)[:, -1]
        # A real kernel has conjugate symbols at opposite frequencies.
        squares[-row] = squares[row, opposite]
    return np.sqrt(squares).reshape(height, PHASES, width, PHASES)
