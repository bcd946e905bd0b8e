//! For tests only: random programs, plan mutations, an interleaving simulator, tiny models.
