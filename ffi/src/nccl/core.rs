//! What one process has of everything: a fabric, a bootstrap listener, and the links over them.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use planespray::{Engine, Error, Fabric, FabricConfig, JobKey, Listener};

use super::abi::TRAFFIC_CLASS_UNDEF;
use super::device::Device;
use super::log;
use super::memory::Registration;
use super::settings::Settings;
use super::setup::Setup;

/// The process's plugin, from the first `init` to the last `finalize`.
pub(super) struct Core {
    pub(super) process: u32,
    // The links in it go before the fabric.
    pub(super) setup: Mutex<Setup>,
    pub(super) listener: Listener,
    /// Stands in for the memory of messages without bytes.
    pub(super) nothing: Arc<Registration>,
    pub(super) fabric: Fabric,
    pub(super) device: Device,
    pub(super) settings: Settings,
    /// Lets in who has one of our handles.
    pub(super) secret: [u8; 32],
    traffic_class: i32,
}

impl Core {
    /// Opens the fabric that the environment asks for. `traffic_class` is what the first communicator wants, or -1.
    ///
    /// # Errors
    /// In words for the user.
    pub(super) fn open(traffic_class: i32) -> Result<Core, String> {
        let key = JobKey::from_env().map_err(|e| e.to_string())?;
        let settings = Settings::read(|name| std::env::var(name).ok(), &Settings::interfaces(), key)?;
        for line in &settings.log {
            log::info(line);
        }
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).map_err(|e| format!("the system gave no random numbers: {e}"))?;
        let mut config = FabricConfig {
            engine: Engine::Embedded,
            planes: settings.planes.iter().map(|p| p.1).collect(),
            key: Some(combined(settings.key.as_ref(), &secret)),
            peer_timeout: settings.peer_timeout,
            ..FabricConfig::default()
        };
        if let Some(lanes) = settings.lanes_per_plane {
            config.lanes_per_plane = lanes;
        }
        let asked = u8::try_from(traffic_class).ok().and_then(|tos| planespray::Dscp::new(tos >> 2));
        if let Some(dscp) = asked.or(settings.dscp) {
            config.dscp = [dscp; 3];
        }
        let open = || -> Result<(Fabric, Listener, Arc<Registration>), Error> {
            let fabric = Fabric::open(&config)?;
            let listener = fabric.listen(SocketAddr::new(config.planes[0], 0))?;
            // SAFETY: no bytes need no memory.
            let nothing = unsafe { Registration::new(&fabric, std::ptr::null_mut(), 0) }?;
            Ok((fabric, listener, nothing))
        };
        let (fabric, listener, nothing) = open().map_err(|e| e.to_string())?;
        let device = Device::survey(&settings.planes);
        log::info(&format!(
            "embedded RoCEv2 over UDP on {} plane(s); bootstrap at {}",
            config.planes.len(),
            listener.local_addr()
        ));
        Ok(Core {
            process: std::process::id(),
            setup: Mutex::new(Setup::default()),
            listener,
            nothing,
            fabric,
            device,
            settings,
            secret,
            traffic_class,
        })
    }

    /// The key that lets us in to the owner of `secret`.
    pub(super) fn key_for(&self, secret: &[u8; 32]) -> JobKey {
        combined(self.settings.key.as_ref(), secret)
    }

    /// A later communicator wants this class: lanes are shared, so the first one's stays.
    pub(super) fn want_traffic_class(&self, class: i32) {
        if class != TRAFFIC_CLASS_UNDEF && class != self.traffic_class {
            log::warn(&format!(
                "a communicator asks for traffic class {class}, but the lanes it shares were opened with {}; set PLANESPRAY_TC \
                 or give all communicators the same",
                if self.traffic_class == TRAFFIC_CLASS_UNDEF {
                    "none".to_owned()
                } else {
                    self.traffic_class.to_string()
                }
            ));
        }
    }
}

/// Without a job key the handle's secret is the key. With one, both are needed: their sum is as secret as the job key, and
/// differs for every listening process.
fn combined(job: Option<&JobKey>, secret: &[u8; 32]) -> JobKey {
    match job {
        Some(job) => job.bound_to(secret),
        None => JobKey::from_bytes(*secret),
    }
}
