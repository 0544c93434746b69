"""examples/notebook from the first cell to the last, on genuine vectors and a few sentences."""

import sys
from pathlib import Path

import pytest
from programs import PYTHON

nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
pytest.importorskip("transformers")
pytest.importorskip("pandas")
NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "notebook" / "bert_from_glove.ipynb"
pytestmark = pytest.mark.end_to_end


def test_the_notebook(data_dir, tmp_path, monkeypatch):
    (tmp_path / "train.tsv.gz").symlink_to(data_dir / "glue/SST-2/train.tsv.gz")
    dev = (data_dir / "glue/SST-2/dev.tsv").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "dev.tsv").write_text("".join(dev[:100]), encoding="utf-8")
    places = {"VECTORS": data_dir / "vectors/glove.6B.100d.subset.txt.gz", "SST2": tmp_path}
    small = {"SENTENCES": 300, "UPDATES": 4, "SEEDS": 1, **places}
    for name, value in small.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(sys, "executable", PYTHON)  # of the kernel
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # of committed outputs there is the picture, and no trace of a machine
    committed = str([cell.get("outputs") for cell in notebook.cells])
    assert "image/png" in committed
    assert "/site-packages/" not in committed
    nbclient.NotebookClient(
        notebook, timeout=600, startup_timeout=600, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    tables = [out["data"]["text/plain"] for cell in notebook.cells for out in cell.get("outputs", []) if "data" in out]
    sigma = {row.split()[0]: float(row.split()[4]) for row in tables[1].splitlines()[1:]}
    assert sigma["pretrained_xavier"] == pytest.approx(sigma["xavier"], rel=0.02)
    assert sigma["pretrained"] > 5 * sigma["xavier"]
