//! Garbage policies over segment metadata and a bounded-step rewriter.
