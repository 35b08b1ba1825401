"""The lab: a cluster on one machine, where schedules are sent for real and counted."""

from tokenlife.lab.cluster import LabError, LabUnavailable, LabWarning, VirtualCluster
from tokenlife.lab.job import Job
from tokenlife.lab.launch import Team, run
from tokenlife.lab.page import Page
from tokenlife.lab.result import Figures, Result
from tokenlife.lab.sites import SiteCluster

__all__ = [
    "Figures", "Job", "LabError", "LabUnavailable", "LabWarning", "Page", "Result", "SiteCluster",
    "Team", "VirtualCluster", "run",
]  # fmt: skip
