"""The class that scripts written for FairScale or torch's FSDP construct."""
