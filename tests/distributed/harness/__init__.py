"""Ranks for tests: processes started once, reused by every case. See `pool.Pool`, `member.Member`."""

from harness.member import Member as Member
from harness.pool import CaseFailure as CaseFailure
from harness.pool import Pool as Pool
