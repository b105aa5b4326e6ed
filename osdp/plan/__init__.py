"""The values that the search hands to training: Plan and its parts."""

from osdp.plan.choice import MODES, RECOMPUTE, SPLITS, Choice
from osdp.plan.plan import Plan
from osdp.plan.plan_fields import BatchProof, Certificate, OperatorPrediction, PhasePrice, Prediction
from osdp.plan.searched import Searched
from osdp.plan.unit_grouping import group_units
from osdp.plan.validation import check_same_model, validate

__all__ = [
    "MODES",
    "RECOMPUTE",
    "SPLITS",
    "BatchProof",
    "Certificate",
    "Choice",
    "OperatorPrediction",
    "PhasePrice",
    "Plan",
    "Prediction",
    "Searched",
    "check_same_model",
    "group_units",
    "validate",
]
