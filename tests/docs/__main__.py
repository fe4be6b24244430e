"""``python -m tests.docs`` rewrites the generated tables of the documents."""

from tests.docs.tables import DOCUMENTS, fresh

for path in DOCUMENTS:
    path.write_text(fresh(path.read_text(encoding="utf-8")), encoding="utf-8")
