//! RoCEv2 queue pairs.
