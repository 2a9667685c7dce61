"""Files of weights that read other files, or become gigabytes, made of an intact one."""

import io
import zipfile

import h5py
import numpy as np

WEIGHTS = "model.weights.h5"
# The numbers of another file, which must not become weights.
SECRET = np.arange(10_000, dtype="float32")


def _dataset(file):
    """The first dataset with more than one number: its group, name, shape."""
    found = []
    file.visititems(
        lambda _, item: found.append(item) if isinstance(item, h5py.Dataset) and item.ndim else None
    )
    return found[0].parent, found[0].name.rpartition("/")[2], found[0].shape


def external_data(file, secret):
    group, name, shape = _dataset(file)
    del group[name]
    group.create_dataset(
        name, shape, "float32", external=[(str(secret.with_suffix(".raw")), 0, h5py.h5f.UNLIMITED)]
    )


def external_link(file, secret):
    group, name, _ = _dataset(file)
    del group[name]
    group[name] = h5py.ExternalLink(str(secret), "secret")


def external_group(file, secret):
    group, _, _ = _dataset(file)
    path, parent = group.name, group.parent
    del parent[path]
    parent[path] = h5py.ExternalLink(str(secret), "/")


def soft_link(file, secret):
    group, name, _ = _dataset(file)
    del group[name]
    file["outside"] = h5py.ExternalLink(str(secret), "/")
    group[name] = h5py.SoftLink("/outside/secret")


def virtual_data(file, secret):
    group, name, shape = _dataset(file)
    del group[name]
    layout = h5py.VirtualLayout(shape, "float32")
    layout[...] = h5py.VirtualSource(str(secret), "secret", shape)
    group.create_virtual_dataset(name, layout)


def empty_gigabytes(file, secret):
    """A shape of 16 GiB, of which nothing is stored, where the model has a weight."""
    group, name, _ = _dataset(file)
    del group[name]
    group.create_dataset(name, (2**32,), "float32", chunks=(2**20,), compression="gzip")


def many_repetitions(file, secret):
    """Datasets of zeros, each of which is small."""
    for index in range(10):
        file.create_dataset(f"zeros{index}", data=np.zeros(2**21, "float32"), compression="gzip")


IN_WEIGHTS = {
    change.__name__: change
    for change in (
        external_data,
        external_link,
        external_group,
        soft_link,
        virtual_data,
        empty_gigabytes,
        many_repetitions,
    )
}


def with_secret(path):
    """Writes the other file, as HDF5 and as bytes; returns its path."""
    with h5py.File(path, "w") as file:
        file["secret"] = SECRET
    path.with_suffix(".raw").write_bytes(SECRET.tobytes())
    return path


def change_weights(path, change, secret):
    """Changes the weights in a `.keras` file, or a file of weights."""
    if path.suffix != ".keras":
        with h5py.File(path, "r+") as file:
            change(file, secret)
        return

    def changed(name, content):
        if name != WEIGHTS:
            return content
        content = io.BytesIO(content)
        with h5py.File(content, "r+") as file:
            change(file, secret)
        return content.getvalue()

    rewrite(path, changed)


def rewrite(path, change):
    """Writes an archive again: `change` takes name and content, and returns it, or `None`."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            content = change(name, content)
            if content is not None:
                archive.writestr(name, content)


def with_member(name, content=b"mine", **options):
    """A function that adds a file to an archive."""

    def change(path):
        with zipfile.ZipFile(path, "a", **options) as archive:
            archive.writestr(zipfile.ZipInfo(name), content, **_compression(options))

    return change


def _compression(options):
    return {"compress_type": options.get("compression", zipfile.ZIP_STORED)}


def with_linked_member(path):
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("assets/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc/hostname")


def with_weights_of_numpy(path):
    """An archive in the archive, whose arrays are small when they are stored."""
    rewrite(path, lambda name, content: None if name == WEIGHTS else content)
    content = io.BytesIO()
    np.savez_compressed(content, layer=np.zeros(2**25, "float32"))
    with_member("model.weights.npz", content.getvalue())(path)


IN_ARCHIVE = {
    "above": with_member("../x"),
    "at the root": with_member("/tmp/x"),
    "of Windows": with_member("assets\\..\\..\\x"),
    "on a drive": with_member("C:/x"),
    "a link": with_linked_member,
    "zeros": with_member("assets/x", bytes(2**27), compression=zipfile.ZIP_DEFLATED),
    "zeros in NumPy": with_weights_of_numpy,
}
