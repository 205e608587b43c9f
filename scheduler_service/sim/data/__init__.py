"""Samples of public traces that are shipped with the package; see SOURCE.md beside them."""

from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent

AZURE_SAMPLE: Final = (
    str(_HERE / "azure_2023_conv_sample.csv"),
    str(_HERE / "azure_2023_code_sample.csv"),
)
MULTI_TENANT_SAMPLE: Final = (str(_HERE / "multi_tenant_sample.csv"),)
