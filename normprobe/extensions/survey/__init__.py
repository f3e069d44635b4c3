"""Many models in one table: does inertia go with disparity over models (RQ3)?"""

from collections.abc import Callable, Mapping, Sequence

from normprobe.measurements.measurement import Measurement, ShownModule
from normprobe.registry import MEASURE, Extension


class Survey(Measurement):
    """Many models in one table: does inertia go with disparity over models (RQ3)?"""

    name = "survey"
    section_tables = (
        *("survey", "models", "cost", "correlation"),
        *("table1", "table2", "table3", "table6"),
    )

    @property
    def shown(self) -> ShownModule:
        from normprobe.extensions.survey import shown

        return shown


class _SurveyExtension(Extension):
    panel = MEASURE

    def measurements(self) -> Sequence[Measurement]:
        return (Survey(),)

    def commands(self) -> Mapping[str, Callable[..., None]]:
        from normprobe.extensions.survey.command import survey

        return {"survey": survey}


EXTENSION = _SurveyExtension()
