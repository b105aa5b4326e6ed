"""What a model is to the search: its operators, found in one forward on tensors that hold no data."""

from osdp.description.model_description import Block, ModelDescription, Operator, Parameter

__all__ = ["Block", "ModelDescription", "Operator", "Parameter"]
