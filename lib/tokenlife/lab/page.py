"""What a page runs on the ranks of the lab, or shows from its record where there is no lab.

A record of a chapter holds, under a name for each run, where the ranks were, a hash of the text of
the functions that they ran, and what these returned. Where the lab is off, or this machine cannot
give what is asked for, the record stands in, if its functions are those that the page shows. A run
that fails is an error, and never a reason to show an older one.
"""

import contextlib
import hashlib
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from tokenlife.catalog import data_dir, read_record
from tokenlife.lab.cluster import LabError, LabUnavailable, LabWarning, VirtualCluster
from tokenlife.lab.launch import Team
from tokenlife.lab.program import source
from tokenlife.lab.sites import SiteCluster
from tokenlife.provenance import write_record


class Ran(NamedTuple):
    """What functions returned: for each call a list with an entry for each rank.

    ``label`` is ``measured`` or ``recorded``; ``place`` as in
    :class:`~tokenlife.lab.cluster.VirtualCluster`.
    """

    found: list[list]
    label: str
    place: str

    @property
    def where(self) -> str:
        """One sentence on where the ranks were."""
        if self.label == "recorded":
            return "The lab is switched off: what follows was recorded."
        ranks = f"Measured in this run, on {len(self.found[0])} ranks"
        if self.place == "namespaces":
            return f"{ranks} in network namespaces."
        return f"{ranks} over loopback: this machine refuses namespaces."


class Page:
    """The runs of one chapter.

    Parameters
    ----------
    name
        Of its record in ``data/results/``.
    parts
        Of the library, that were measured: the record is stale when they change.
    """

    def __init__(self, name: str, parts: Sequence[str]):
        self.name, self.parts, self._kept, self._read = name, parts, {}, []

    def on_ranks(
        self,
        run: str,
        *calls: tuple[Callable, dict],
        ranks: int = 0,
        namespaces: bool = False,
        sites: Sequence[int] = (),
        meanwhile: Callable | None = None,
        watchdog: float = 120.0,
        **cluster,
    ) -> Ran:
        """Call functions on ranks, one after another, or read what they returned earlier.

        Parameters
        ----------
        run
            The name of the run in the record.
        calls
            A function, as :meth:`~tokenlife.lab.launch.Team.call` takes it, and its arguments.
        ranks, cluster
            As :class:`~tokenlife.lab.cluster.VirtualCluster` takes them.
        namespaces
            Whether loopback will not do.
        sites
            Ranks of each, for a :class:`~tokenlife.lab.sites.SiteCluster` instead; ``cluster`` is
            then what that takes.
        meanwhile
            Called with the cluster, in a thread, when the first call begins: to cut a site, say.
            Its text, too, belongs to what the record is of.
        watchdog
            Seconds that one call may take.

        Raises
        ------
        LabError
            If a function fails, or the record is not of these functions.
        """
        shown = [function for function, _ in calls] + [meanwhile] * (meanwhile is not None)
        text = "".join(source(function)["text"] for function in shown)
        code = hashlib.sha256(text.encode()).hexdigest()
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", LabWarning)  # the page says where the ranks were
            try:
                asked = SiteCluster(sites, **cluster) if sites else VirtualCluster(ranks, **cluster)
                opened = stack.enter_context(asked)
            except LabUnavailable:
                return self._recorded(run, code)
            if namespaces and opened.place != "namespaces":
                return self._recorded(run, code)
            team = stack.enter_context(Team(opened, watchdog))
            pool = stack.enter_context(ThreadPoolExecutor(1))
            beside = pool.submit(meanwhile, opened) if meanwhile else None
            found = [team.call(function, **arguments) for function, arguments in calls]
            if beside:
                beside.result()
        self._kept[run] = {"place": opened.place, "code": code, "found": found}
        return Ran(found, "measured", opened.place)

    def _recorded(self, run: str, code: str) -> Ran:
        self._read.append(run)
        record = read_record(self.name)["values"].get(run, {})
        if record.get("code") != code:
            raise LabError(
                f"the record {self.name} holds no run {run!r} of the functions that the page "
                "shows: make it anew with `make record`"
            )
        return Ran(record["found"], "recorded", record["place"])

    def keep(self) -> None:
        """Write the record.

        Raises
        ------
        LabError
            If something was read instead of measured.
        """
        if self._read:
            raise LabError(f"only what was measured can be kept, not {', '.join(self._read)}")
        write_record(data_dir() / "results" / f"{self.name}.json", self._kept, self.parts)
