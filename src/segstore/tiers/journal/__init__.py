"""The local journal: tier 1 on the machine's own disk, shared by the containers of one process."""

from segstore.tiers.journal.journal import ContainerLog, Journal, open_journal
from segstore.tiers.journal.settings import JournalSettings

__all__ = ["ContainerLog", "Journal", "JournalSettings", "open_journal"]
