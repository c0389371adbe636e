//! What devices answer, in the seam's words: every status of a completion, and why a call was refused.

use super::error::VerbsError;
use super::sys::*;
use crate::lanes::{DeviceRefusal, LaneError, Status};
use crate::mem::MemError;

/// The seam's word for a status of `ibv_wc`. Numbers that the interface does not have yet are errors, too.
pub fn status_of(status: u32) -> Status {
    match status {
        IBV_WC_SUCCESS => Status::Success,
        IBV_WC_WR_FLUSH_ERR => Status::Flushed,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => Status::RetryExceeded,
        IBV_WC_RNR_RETRY_EXC_ERR => Status::RnrRetryExceeded,
        IBV_WC_REM_ACCESS_ERR => Status::RemoteAccess,
        IBV_WC_REM_INV_REQ_ERR => Status::RemoteInvalidRequest,
        IBV_WC_REM_OP_ERR | IBV_WC_REM_ABORT_ERR => Status::RemoteOperation,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR | IBV_WC_MW_BIND_ERR => Status::LocalProtection,
        IBV_WC_LOC_LEN_ERR => Status::LocalLength,
        // IBV_WC_LOC_QP_OP_ERR, LOC_EEC_OP, BAD_RESP, LOC_RDD_VIOL, REM_INV_RD_REQ, INV_EECN, INV_EEC_STATE, FATAL,
        // GENERAL, TM_ERR, TM_RNDV_INCOMPLETE, and what is to come.
        _ => Status::Other,
    }
}

/// The seam's word for what a device said.
pub(super) fn refused(e: VerbsError) -> LaneError {
    let refusal = match &e {
        VerbsError::OutOfBounds { offset, len, size } => {
            return MemError::OutOfBounds { offset: *offset, len: *len, size: *size }.into();
        }
        VerbsError::Invalid { what, .. } => return LaneError::Invalid { what },
        VerbsError::MemlockTooSmall { .. } => DeviceRefusal::LockedMemory,
        VerbsError::QueuePairBudget { .. } => DeviceRefusal::QueuePairBudget,
        VerbsError::RegistrationsExhausted { .. } => DeviceRefusal::Exhausted,
        VerbsError::NoGidFor { .. } => DeviceRefusal::Unreachable,
        VerbsError::Call { errno, .. } => match *errno {
            libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT => DeviceRefusal::Unreachable,
            libc::ENOMEM | libc::ENOSPC => DeviceRefusal::Exhausted,
            _ => DeviceRefusal::Other,
        },
        _ => DeviceRefusal::Other,
    };
    LaneError::Device { refusal, message: e.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_success_is_success() {
        assert_eq!(status_of(0), Status::Success);
        for status in 1..=64 {
            assert_ne!(status_of(status), Status::Success, "status {status}");
        }
        assert_eq!(status_of(IBV_WC_WR_FLUSH_ERR), Status::Flushed);
        assert_eq!(status_of(IBV_WC_GENERAL_ERR), Status::Other);
        assert_eq!(status_of(u32::MAX), Status::Other);
    }
}
