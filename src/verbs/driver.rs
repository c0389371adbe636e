//! Which driver a device has, as sysfs tells.

use std::fs;
use std::path::Path;

/// The name of the RDMA driver of the device whose directory below `/sys/class/infiniband` this is: `mlx5`, `bnxt_re`,
/// `irdma`, `rxe` and so on; `None` if sysfs does not tell.
pub fn driver_of(sysfs: &Path) -> Option<String> {
    let link = fs::read_link(sysfs.join("device/driver")).ok();
    if let Some(name) = link.as_deref().and_then(Path::file_name).map(|n| n.to_string_lossy().into_owned()) {
        // The PCI driver: the network card's, where the RDMA driver sits upon it.
        return Some(match name.as_str() {
            "mlx5_core" => "mlx5".into(),
            "mlx4_core" => "mlx4".into(),
            "bnxt_en" => "bnxt_re".into(),
            "ice" | "i40e" | "idpf" => "irdma".into(),
            "hns3" => "hns".into(),
            "qede" => "qedr".into(),
            "cxgb4" => "iw_cxgb4".into(),
            "mana" => "mana_ib".into(),
            _ => name,
        });
    }
    // A device of software has no PCI device, but says whose network device it uses.
    let described = fs::read_to_string(sysfs.join("node_desc")).unwrap_or_default();
    let soft = described.trim();
    if matches!(soft, "rxe" | "siw") {
        return Some(soft.into());
    }
    sysfs.join("parent").exists().then(|| "rxe".into())
}

/// True if the host's own processors are the device.
pub(super) fn is_software(driver: Option<&str>) -> bool {
    matches!(driver, Some("rxe" | "siw"))
}

/// What the backend calls itself over a device of this driver.
pub(super) fn backend_name(driver: Option<&str>) -> &'static str {
    match driver {
        Some("mlx5") => "verbs:mlx5",
        Some("mlx4") => "verbs:mlx4",
        Some("bnxt_re") => "verbs:bnxt_re",
        Some("irdma") => "verbs:irdma",
        Some("hns") => "verbs:hns",
        Some("mana_ib") => "verbs:mana_ib",
        Some("qedr") => "verbs:qedr",
        Some("efa") => "verbs:efa",
        Some("erdma") => "verbs:erdma",
        Some("ionic") => "verbs:ionic",
        Some("rxe") => "verbs:rxe",
        Some("siw") => "verbs:siw",
        _ => "verbs",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_from_a_tree() {
        let root = tempfile::tempdir().expect("a directory");
        let device = |name: &str| {
            let dir = root.path().join(name);
            fs::create_dir_all(dir.join("device")).expect("made");
            dir
        };
        let mlx = device("mlx5_0");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/mlx5_core", mlx.join("device/driver")).expect("linked");
        assert_eq!(driver_of(&mlx).as_deref(), Some("mlx5"));
        let rxe = device("rxe0");
        fs::write(rxe.join("parent"), "eth0\n").expect("written");
        assert_eq!(driver_of(&rxe).as_deref(), Some("rxe"));
        fs::write(rxe.join("node_desc"), "siw\n").expect("written");
        assert_eq!(driver_of(&rxe).as_deref(), Some("siw"));
        assert_eq!(driver_of(&root.path().join("nothing")), None);
        assert_eq!((backend_name(Some("rxe")), backend_name(None)), ("verbs:rxe", "verbs"));
    }
}
