//! How many queue pairs a process uses on each port.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::error::VerbsError;

/// Queue pairs on one port that a process allows itself.
pub const DEFAULT_BUDGET: u32 = 4096;

/// Counts the queue pairs on each port. A clone counts with it.
#[derive(Clone, Debug)]
pub struct Budget {
    limit: u32,
    used: Arc<Mutex<BTreeMap<(String, u8), u32>>>,
}

/// One queue pair's share; given back when dropped.
#[derive(Debug)]
pub struct Permit {
    used: Arc<Mutex<BTreeMap<(String, u8), u32>>>,
    port: (String, u8),
}

impl Budget {
    /// A budget of its own, of `limit` queue pairs for each port.
    pub fn new(limit: u32) -> Budget {
        Budget { limit, used: Arc::default() }
    }

    /// The budget that the whole process shares, of [`DEFAULT_BUDGET`].
    pub fn process() -> Budget {
        static PROCESS: OnceLock<Budget> = OnceLock::new();
        PROCESS.get_or_init(|| Budget::new(DEFAULT_BUDGET)).clone()
    }

    /// Room for one more.
    ///
    /// # Errors
    /// [`VerbsError::QueuePairBudget`].
    pub fn take(&self, device: &str, port: u8) -> Result<Permit, VerbsError> {
        let port = (device.to_owned(), port);
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let count = used.entry(port.clone()).or_insert(0);
        if *count >= self.limit {
            return Err(VerbsError::QueuePairBudget { device: port.0, port: port.1, limit: self.limit });
        }
        *count += 1;
        Ok(Permit { used: self.used.clone(), port })
    }

    /// Queue pairs in use on a port.
    pub fn used(&self, device: &str, port: u8) -> u32 {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        used.get(&(device.to_owned(), port)).copied().unwrap_or(0)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = used.get_mut(&self.port) {
            *count = count.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_has_its_own_and_gets_it_back() {
        let budget = Budget::new(2);
        let first = budget.take("a", 1).expect("room");
        let _second = budget.clone().take("a", 1).expect("room");
        let full = budget.take("a", 1).expect_err("full");
        assert_eq!(full, VerbsError::QueuePairBudget { device: "a".into(), port: 1, limit: 2 });
        assert!(full.to_string().contains("all 2 queue pairs"), "{full}");
        assert!(budget.take("a", 2).is_ok() && budget.take("b", 1).is_ok());
        drop(first);
        assert_eq!(budget.used("a", 1), 1);
        assert!(budget.take("a", 1).is_ok());
    }
}
