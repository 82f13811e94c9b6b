"""GroupNorm, alone or with SiLU, and its gradient for CUDA, in Triton, over channels-last images: a matrix (positions, channels) for
each. There are no atomics, so the same inputs give the same bits. The interpreter (TRITON_INTERPRET=1) runs them on a CPU.

All arithmetic is float32. Forward reads an image twice: the moments of each channel over parts of the positions, which are merged to
those of the groups, then the result. Backward reads image and incoming gradient twice: sums of each channel over parts of the
positions, of which the gradients of weight and bias and the terms of each group are made, then the gradient of the image.

With OFFSET a number for each channel is added to the image first, the bias of the convolution before: it moves the channels' means,
and costs no pass over the image. Its gradient is a sum over what the last pass writes.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _image_and_part(splits, split_size, positions):
    """The image and the positions (first, last) of this program."""
    program = tl.program_id(0)
    first = (program % splits) * split_size
    return (program // splits).to(tl.int64), first, tl.minimum(first + split_size, positions)


@triton.jit
def _load_channels(pointer, columns, channels):
    """One number for each channel of a tile, as float32."""
    return tl.load(pointer + columns, mask=columns < channels, other=0.0).to(tl.float32)


@triton.jit
def _load_tile(pointer, offsets, inside):
    """A tile (rows, columns) of an image as float32; zeros beyond its edges."""
    return tl.load(pointer + offsets, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _load_group_numbers(pointer, image, columns, channels, width):
    """The number of each channel's group, from (images, groups)."""
    groups = image * (channels // width) + columns // width
    return tl.load(pointer + groups, mask=columns < channels, other=0.0)


@triton.jit
def _load_middles(mean, offset, image, columns, channels, width, OFFSET: tl.constexpr):
    """What is subtracted from each channel of x: its group's mean, which is that of x + offset, less its offset."""
    middle = _load_group_numbers(mean, image, columns, channels, width)
    if OFFSET:
        middle -= _load_channels(offset, columns, channels)
    return middle


@triton.jit
def _silu_slope(y):
    """The derivative of y·σ(y)."""
    sigmoid = 1.0 / (1.0 + tl.exp(-y))
    return sigmoid * (1.0 + y * (1.0 - sigmoid))


# ---- forward -----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["positions", "splits", "split_size"])
def moments_kernel(
    x,
    offset,
    part_means,
    part_squares,
    positions,
    splits,
    split_size,
    channels,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each channel's mean, and its sum of squared deviations from it, over one part of an image's positions."""
    image, first, last = _image_and_part(splits, split_size, positions)
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    local = rows[:, None] * channels + columns[None, :]
    # Deviations from about the mean, that of the first tile, so that a large mean costs no precision.
    inside = (rows < last - first)[:, None] & (columns < channels)[None, :]
    value = _load_tile(x + (image * positions + first) * channels, local, inside)
    origin = tl.sum(value, axis=0) / tl.minimum(last - first, ROWS).to(tl.float32)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    square = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for row in tl.range(first, last, ROWS, num_stages=STAGES):
        inside = (rows < last - row)[:, None] & (columns < channels)[None, :]
        value = _load_tile(x + (image * positions + row) * channels, local, inside)
        deviation = tl.where(inside, value - origin[None, :], 0.0)
        total += deviation
        square += deviation * deviation
    shift = tl.sum(total, axis=0) / (last - first).to(tl.float32)
    squares = tl.sum(square, axis=0) - tl.sum(total, axis=0) * shift
    place = tl.program_id(0).to(tl.int64) * channels + columns
    if OFFSET:
        origin += _load_channels(offset, columns, channels)
    tl.store(part_means + place, origin + shift, mask=columns < channels)
    tl.store(part_squares + place, tl.maximum(squares, 0.0), mask=columns < channels)


@triton.jit(do_not_specialize=["positions", "splits", "split_size"])
def merge_moments_kernel(
    part_means,
    part_squares,
    mean,
    inverse,
    positions,
    splits,
    split_size,
    channels,
    width,
    eps,
    SPLITS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The mean of one group of one image, and 1/√(variance + eps), from the moments of the channels' parts."""
    groups = channels // width
    image = (tl.program_id(0) // groups).to(tl.int64)
    start = image * splits * channels + (tl.program_id(0) % groups) * width
    elements = positions.to(tl.float32) * width
    origin = tl.load(part_means + start)
    total = tl.zeros((SPLITS, COLUMNS), dtype=tl.float32)
    for first in range(0, splits, SPLITS):
        parts = first + tl.arange(0, SPLITS)
        count = tl.minimum(split_size, positions - parts * split_size).to(tl.float32)
        for column in range(0, width, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            inside = (parts < splits)[:, None] & (columns < width)[None, :]
            place = start + parts[:, None] * channels + columns[None, :]
            deviation = tl.load(part_means + place, mask=inside, other=0.0) - origin
            total += tl.where(inside, deviation * count[:, None], 0.0)
    group_mean = origin + tl.sum(total) / elements
    square = tl.zeros((SPLITS, COLUMNS), dtype=tl.float32)
    for first in range(0, splits, SPLITS):
        parts = first + tl.arange(0, SPLITS)
        count = tl.minimum(split_size, positions - parts * split_size).to(tl.float32)
        for column in range(0, width, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            inside = (parts < splits)[:, None] & (columns < width)[None, :]
            place = start + parts[:, None] * channels + columns[None, :]
            deviation = tl.load(part_means + place, mask=inside, other=0.0) - group_mean
            squares = tl.load(part_squares + place, mask=inside, other=0.0)
            square += tl.where(inside, squares + deviation * deviation * count[:, None], 0.0)
    variance = tl.sum(square) / elements
    tl.store(mean + tl.program_id(0), group_mean)
    tl.store(inverse + tl.program_id(0), tl.div_rn(1.0, tl.sqrt_rn(variance + eps)))


@triton.jit(do_not_specialize=["positions", "splits", "split_size"])
def normalize_kernel(
    x,
    offset,
    weight,
    bias,
    mean,
    inverse,
    y,
    positions,
    splits,
    split_size,
    channels,
    width,
    SILU: tl.constexpr,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """(x + offset − mean)·inverse·weight + bias, with SILU its SiLU, over one part of an image's positions."""
    image, first, last = _image_and_part(splits, split_size, positions)
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    local = rows[:, None] * channels + columns[None, :]
    middle = _load_middles(mean, offset, image, columns, channels, width, OFFSET)
    scale = _load_group_numbers(inverse, image, columns, channels, width) * _load_channels(weight, columns, channels)
    shift = _load_channels(bias, columns, channels)
    for row in tl.range(first, last, ROWS, num_stages=STAGES):
        inside = (rows < last - row)[:, None] & (columns < channels)[None, :]
        start = (image * positions + row) * channels
        value = (_load_tile(x + start, local, inside) - middle[None, :]) * scale[None, :] + shift[None, :]
        if SILU:
            value = value / (1.0 + tl.exp(-value))
        tl.store(y + start + local, value.to(y.dtype.element_ty), mask=inside)


# ---- backward ----------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["positions", "splits", "split_size"])
def gradient_sums_kernel(
    grad,
    x,
    offset,
    weight,
    bias,
    mean,
    inverse,
    sums,
    positions,
    splits,
    split_size,
    channels,
    width,
    SILU: tl.constexpr,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Each channel's sums, over one part of an image's positions, of the gradient before the activation, and of it times the
    normalised values: sums (2, images · splits, channels)."""
    image, first, last = _image_and_part(splits, split_size, positions)
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    local = rows[:, None] * channels + columns[None, :]
    middle = _load_middles(mean, offset, image, columns, channels, width, OFFSET)
    scale = _load_group_numbers(inverse, image, columns, channels, width)
    gain = _load_channels(weight, columns, channels)
    shift = _load_channels(bias, columns, channels)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    product = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for row in tl.range(first, last, ROWS, num_stages=STAGES):
        inside = (rows < last - row)[:, None] & (columns < channels)[None, :]
        start = (image * positions + row) * channels
        normal = (_load_tile(x + start, local, inside) - middle[None, :]) * scale[None, :]
        gradient = _load_tile(grad + start, local, inside)
        if SILU:
            gradient *= _silu_slope(normal * gain[None, :] + shift[None, :])
        gradient = tl.where(inside, gradient, 0.0)
        total += gradient
        product += gradient * normal
    place = sums + tl.program_id(0).to(tl.int64) * channels + columns
    tl.store(place, tl.sum(total, axis=0), mask=columns < channels)
    second = tl.num_programs(0).to(tl.int64) * channels
    tl.store(place + second, tl.sum(product, axis=0), mask=columns < channels)


@triton.jit(do_not_specialize=["positions", "splits"])
def merge_sums_kernel(
    sums, weight, group_sums, positions, splits, channels, width, SPLITS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The means over one group of one image of both sums' terms times the weight: group_sums (2, images · groups)."""
    groups = channels // width
    image = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    start = image * splits * channels + group * width
    second = (tl.num_programs(0) // groups).to(tl.int64) * splits * channels
    total = tl.zeros((SPLITS, COLUMNS), dtype=tl.float32)
    product = tl.zeros((SPLITS, COLUMNS), dtype=tl.float32)
    for column in range(0, width, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        gain = _load_channels(weight + group * width, columns, width)
        for first in range(0, splits, SPLITS):
            parts = first + tl.arange(0, SPLITS)
            inside = (parts < splits)[:, None] & (columns < width)[None, :]
            place = sums + start + parts[:, None] * channels + columns[None, :]
            total += tl.load(place, mask=inside, other=0.0) * gain[None, :]
            product += tl.load(place + second, mask=inside, other=0.0) * gain[None, :]
    elements = positions.to(tl.float32) * width
    tl.store(group_sums + tl.program_id(0), tl.sum(total) / elements)
    tl.store(group_sums + tl.num_programs(0) + tl.program_id(0), tl.sum(product) / elements)


@triton.jit(do_not_specialize=["positions", "splits", "split_size", "group_count"])
def gradient_kernel(
    grad,
    x,
    offset,
    weight,
    bias,
    mean,
    inverse,
    group_sums,
    x_grad,
    offset_sums,
    positions,
    splits,
    split_size,
    group_count,
    channels,
    width,
    SILU: tl.constexpr,
    OFFSET: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """The gradient of x over one part of an image's positions, and with OFFSET its sums, (images · splits, channels). `group_count`
    is that of all images."""
    image, first, last = _image_and_part(splits, split_size, positions)
    rows = tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    local = rows[:, None] * channels + columns[None, :]
    middle = _load_middles(mean, offset, image, columns, channels, width, OFFSET)
    scale = _load_group_numbers(inverse, image, columns, channels, width)
    gain = _load_channels(weight, columns, channels)
    shift = _load_channels(bias, columns, channels)
    constant = _load_group_numbers(group_sums, image, columns, channels, width)
    slope = _load_group_numbers(group_sums + group_count, image, columns, channels, width)
    if OFFSET:
        total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for row in tl.range(first, last, ROWS, num_stages=STAGES):
        inside = (rows < last - row)[:, None] & (columns < channels)[None, :]
        start = (image * positions + row) * channels
        normal = (_load_tile(x + start, local, inside) - middle[None, :]) * scale[None, :]
        value = _load_tile(grad + start, local, inside) * gain[None, :]
        if SILU:
            value *= _silu_slope(normal * gain[None, :] + shift[None, :])
        value = (value - constant[None, :] - normal * slope[None, :]) * scale[None, :]
        tl.store(x_grad + start + local, value.to(x_grad.dtype.element_ty), mask=inside)
        if OFFSET:
            total += tl.where(inside, value, 0.0)
    if OFFSET:
        place = tl.program_id(0).to(tl.int64) * channels + columns
        tl.store(offset_sums + place, tl.sum(total, axis=0), mask=columns < channels)
