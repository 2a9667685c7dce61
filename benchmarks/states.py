"""States on disk: the speed of saving them beside the same walk without, and other formats.

    python benchmarks/states.py [--gigabytes 4] [--widths 16,32,64] [--dtypes float32]

The state after each of 9 blocks is computed for images of 32x32x3 in batches of 32 and written
whole, until so many gigabytes are on disk: by `probes.save_states` to Zarr, by h5py to one HDF5
file, and by NumPy to one `.npy` file per block; *walk* computes the same and writes nothing. Each
is measured in a process of its own, with the network compiled before. The memory is the largest
resident size of the process, beside that before the first image; `import tensorflow` alone takes
854 MB on machine 1 (`python -c "import tensorflow, resource as r;
print(r.getrusage(r.RUSAGE_SELF).ru_maxrss)"`, in KB). A ratio "walk / Zarr" is the
speed of saving as a share of that of the walk. As many bytes are written and removed before: what a
virtual machine has not used yet, it first gets from its host, which takes longer than writing.

Killed with SIGKILL in the middle, only Zarr resumes. h5py could not open its file again. A `.npy`
file of a memory map opens, with zeros where nothing was written, and nothing says where that is.
"""

import json
import os
import pathlib
import resource
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from results import compared, run, timed
from timing import in_fresh_process, seconds_of

WALK, ZARR, HDF5, NPY = "walk", "Zarr", "HDF5", ".npy"
BATCH, BLOCKS = 32, 9


def serve(kind, widths, dtype, gigabytes, folder):
    """Writes, and prints seconds, bytes on disk, and the resident size before and at most."""
    import numpy as np
    import tensorflow as tf

    import tfresidual as tfr
    from tfresidual import networks, probes

    chain = tfr.chain(networks.resnet(2 * BLOCKS + 2, widths=tuple(map(int, widths.split(",")))))
    batch, folder = tf.random.uniform((BATCH, 32, 32, 3), seed=0), pathlib.Path(folder)

    @tf.function
    def states(images):
        pairs, _ = chain.walk(chain.stem(images))
        return {f"block{place}": tf.cast(after, dtype) for place, (_, after) in enumerate(pairs)}

    first = {name: np.asarray(state) for name, state in states(batch).items()}
    count = int(float(gigabytes) * 1e9 / sum(state.nbytes for state in first.values()))
    shapes = {name: (count * BATCH, *state.shape[1:]) for name, state in first.items()}

    def walk(arrays=None):
        for number in range(count):
            for name, state in states(batch).items():
                array = np.asarray(state)
                if arrays is not None:
                    arrays[name][number * BATCH : (number + 1) * BATCH] = array

    def save(number):
        data = tf.data.Dataset.from_tensors(batch).repeat(number)
        probes.save_states(chain, data, folder / f"{number}", pool=None, dtype=dtype)

    if kind == ZARR:
        save(1)
    before = _most()
    _write_and_remove(folder / "some", float(gigabytes))
    if kind == ZARR:

        def function():
            save(count)

    elif kind == HDF5:
        import h5py

        def function():
            with h5py.File(folder / "states.h5", "w") as file:
                walk(
                    {
                        name: file.create_dataset(name, shape, dtype, chunks=(BATCH, *shape[1:]))
                        for name, shape in shapes.items()
                    }
                )
    elif kind == NPY:
        memmap = np.lib.format.open_memmap

        def function():
            walk({n: memmap(folder / f"{n}.npy", "w+", dtype, s) for n, s in shapes.items()})
    else:
        function = walk
    _, seconds = seconds_of(function)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(json.dumps([seconds, size, before, _most()]))


def _write_and_remove(path, gigabytes):
    part = bytes(2**24)
    with path.open("wb") as file:
        for _ in range(int(gigabytes * 1e9 / len(part))):
            file.write(part)
    path.unlink()


def _most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(arguments):
    for widths in arguments.widths:
        for dtype in arguments.dtypes:
            seconds = {kind: [] for kind in (WALK, ZARR, HDF5, NPY)}
            notes = {}
            for _ in range(arguments.rounds):
                for kind, of_kind in seconds.items():
                    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
                        values = (kind, widths, dtype, arguments.gigabytes, folder)
                        took, size, before, most = in_fresh_process(__file__, *values)
                    of_kind.append(took)
                    notes[kind] = f"{size / 1e9:.2f} GB on disk, " * (kind != WALK)
                    notes[kind] += f"{most / 1e6:.0f} MB of memory, {before / 1e6:.0f} before"
            setting = f"widths {widths}, {dtype}, {arguments.gigabytes:g} GB"
            for kind in (ZARR, HDF5, NPY):
                yield compared(
                    f"{WALK} / {kind}", setting, seconds[WALK], seconds[kind], notes[kind]
                )
            yield timed(WALK, setting, seconds[WALK], note=notes[WALK])


def add_arguments(parser):
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--widths", nargs="+", default=["16,32,64", "64,128,256"])
    parser.add_argument("--dtypes", nargs="+", default=["float32"])
    parser.add_argument("--folder", help="where to write, by default that of temporary files")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        run(measure, add_arguments)
