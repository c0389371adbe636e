//! What only mlx5 devices have: the UDP source port of a live queue pair, set by libmlx5, which is loaded when such a
//! device is opened and never linked.

use std::ffi::c_int;
use std::fmt;
use std::path::Path;
use std::ptr::NonNull;

use super::dl;
use super::error::VerbsError;
use super::sys::ibv_qp;

/// The variable that names another library than [`DEFAULT_MLX5`]. Whoever starts the backend reads it.
pub const MLX5_VARIABLE: &str = "PLANESPRAY_MLX5";
/// What is loaded if nothing else is named.
pub const DEFAULT_MLX5: &str = "libmlx5.so.1";

/// From rdma-core's `infiniband/mlx5dv.h`: the queue pair is RC and in RTS; the result is 0 or an error number.
type ModifyUdpSport = unsafe extern "C" fn(*mut ibv_qp, u16) -> c_int;

/// A loaded libmlx5 that can set source ports. It stays loaded for the life of the process, as libibverbs' provider.
#[derive(Clone, Copy)]
pub struct Mlx5 {
    modify_udp_sport: ModifyUdpSport,
}

impl Mlx5 {
    /// Loads `path`, or [`DEFAULT_MLX5`] as the system finds it.
    ///
    /// # Errors
    /// [`VerbsError::NoSourcePorts`]: it is not there, or too old.
    pub fn load(path: Option<&Path>) -> Result<Mlx5, VerbsError> {
        let name = path.unwrap_or(Path::new(DEFAULT_MLX5));
        let absent = |reason: String| VerbsError::NoSourcePorts { path: name.display().to_string(), reason };
        let handle = dl::open(name).map_err(absent)?;
        // SAFETY: just loaded.
        let symbol = unsafe { dl::find(handle, c"mlx5dv_modify_qp_udp_sport", c"MLX5_1.17") };
        let symbol = symbol.ok_or_else(|| absent("it has no mlx5dv_modify_qp_udp_sport".into()))?;
        // SAFETY: the function has this type in every version that has it.
        let modify_udp_sport = unsafe { std::mem::transmute::<NonNull<std::ffi::c_void>, ModifyUdpSport>(symbol) };
        Ok(Mlx5 { modify_udp_sport })
    }

    /// Sets a source port; 0 or an error number.
    ///
    /// # Safety
    /// A live queue pair.
    pub(super) unsafe fn modify_udp_sport(&self, qp: NonNull<ibv_qp>, port: u16) -> c_int {
        // SAFETY: as promised; the function itself refuses queue pairs of other devices.
        unsafe { (self.modify_udp_sport)(qp.as_ptr(), port) }
    }
}

impl fmt::Debug for Mlx5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mlx5")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_libmlx5_is_said() {
        for (path, part) in [("/nowhere/libmlx5.so.1", "cannot open"), ("libc.so.6", "mlx5dv_modify_qp_udp_sport")] {
            let e = Mlx5::load(Some(Path::new(path))).expect_err("not there");
            assert!(matches!(&e, VerbsError::NoSourcePorts { path: p, .. } if p == path), "{e:?}");
            let text = e.to_string();
            assert!(text.contains(part) && text.contains("flow label") && text.contains(MLX5_VARIABLE), "{text}");
        }
    }
}
