"""The right to write: of a store to its tiers, and of an owner to its container.

Invariants of all modules here:
1. When a start is refused because of a data directory, a journal or a tier 2, that one is not
   changed. Held by ``test_another_version_file_is_refused_and_not_changed``,
   ``test_another_journal_is_refused``, ``test_another_store_s_tier_2_is_refused`` and, in a
   cluster, ``test_another_tier_2_is_refused_and_left_as_it_is``.
2. When an earlier start of the refused store was killed after it had written a claim or an identity
   to tier 2, the next start removes that, so that it does not keep other stores out. Held by
   ``test_two_new_stores_that_were_killed_when_they_met``.
"""
