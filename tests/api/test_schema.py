"""What schemathesis makes of the document that the server gives of itself: requests that keep to it and requests that do not.

No answer may be a fault of the server's, or have a status or a form that the document does not tell. What the document cannot say,
such as the size of the vocabulary, is refused with 400, so that not all that fits it is accepted.
"""

import sys
from pathlib import Path

import pytest

from api.conftest import KEY, Api
from support.processes import run_limited

SEED = 20_261_130
EXAMPLES = 10
"""Of each kind and route, beside those of every border of every field; the run takes half a minute."""

CHECKS = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]


@pytest.mark.timeout(280)
def test_the_server_is_as_its_document_says(api: Api, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://{api.http}/openapi.json"]
    how = ["--seed", str(SEED), "--max-examples", str(EXAMPLES), "--generation-database", "none", "--request-timeout", "30"]
    key = ["--header", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS)]
    done = run_limited([*command, *how, *key], limit_s=240, cwd=tmp_path)
    print(done.tail(20))
    done.check()
    assert "Tested: 12" in done.output, done.tail()
