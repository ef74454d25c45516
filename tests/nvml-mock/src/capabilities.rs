//! What the kernel's module shows of MIG under `/proc`: which capabilities there are, and their minor numbers.
//!
//! It follows from the state alone, so it is made anew whenever that has changed, and what a process that was killed in between has
//! left undone is done by the next.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    board::Board,
    mig::{MOST_COMPUTE_INSTANCES, MOST_GPU_INSTANCES, capability_minor},
    state::State,
};

/// Minor number of the right to make and destroy instances.
const CONFIG: u32 = 1;
/// Minor number of the right to look at all of them.
const MONITOR: u32 = 2;
/// GPUs that the list of minors has.
const MOST_GPUS: u32 = 32;

/// Shows what there is. Whoever calls it holds the lock of the state file.
pub(crate) fn show(state: &State) -> io::Result<()> {
    let Some(proc_directory) = &state.proc_directory else {
        return Ok(());
    };
    let Some(board) = Board::named(&state.board).filter(|board| board.mig.is_some()) else {
        return Ok(());
    };
    let minors = proc_directory.join("driver/nvidia-caps/mig-minors");
    let root = proc_directory.join("driver/nvidia/capabilities");
    fs::create_dir_all(&root)?;
    let files = Files {
        partial: root.join(".new"),
    };
    if !minors.exists() {
        files.put(&minors, &list_of_minors())?;
    }
    let mut wanted = instances(state, &board);
    for directory in instance_directories(&root) {
        let access = Path::new(&directory).join("access");
        if !wanted.contains_key(&access) {
            // With a GPU instance go its compute instances.
            remove(&root.join(&directory))?;
        }
    }
    wanted.insert("mig/config".into(), CONFIG);
    wanted.insert("mig/monitor".into(), MONITOR);
    for (path, minor) in wanted {
        let path = root.join(path);
        if !path.exists() {
            files.put(&path, &capability(minor))?;
        }
    }
    Ok(())
}

/// The file of each instance, and its minor number.
fn instances(state: &State, board: &Board) -> BTreeMap<PathBuf, u32> {
    let mut files = BTreeMap::new();
    for position in 0..board.gpus.len() {
        let gpu = state.minor(board, position);
        let uuid = state.uuid(board, position);
        let card = state.cards.get(&uuid);
        for instance in card.into_iter().flat_map(|card| &card.gpu_instances) {
            let directory = format!("gpu{gpu}/mig/gi{}", instance.id);
            let mut file = |path: String, compute_instance| {
                let minor = capability_minor(gpu, instance.id, compute_instance);
                files.insert(PathBuf::from(path), minor);
            };
            file(format!("{directory}/access"), None);
            for part in &instance.compute_instances {
                file(format!("{directory}/ci{}/access", part.id), Some(part.id));
            }
        }
    }
    files
}

/// The directories of instances that are there, GPU instances before what is in them.
fn instance_directories(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for gpu in names(root, "gpu") {
        for instance in names(&root.join(&gpu).join("mig"), "gi") {
            let directory = format!("{gpu}/mig/{instance}");
            let parts = names(&root.join(&directory), "ci");
            let parts: Vec<String> = parts.iter().map(|ci| format!("{directory}/{ci}")).collect();
            found.push(directory);
            found.extend(parts);
        }
    }
    found
}

fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(prefix)).collect()
}

fn remove(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

struct Files {
    partial: PathBuf,
}

impl Files {
    /// By rename: a file is read at any moment.
    fn put(&self, path: &Path, content: &str) -> io::Result<()> {
        fs::create_dir_all(path.parent().unwrap_or(path))?;
        fs::write(&self.partial, content)?;
        fs::rename(&self.partial, path)
    }
}

fn capability(minor: u32) -> String {
    format!("DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")
}

/// Every capability that there can be, as the module lists them.
fn list_of_minors() -> String {
    let mut list = format!("config {CONFIG}\nmonitor {MONITOR}\n");
    for gpu in 0..MOST_GPUS {
        for instance in 0..MOST_GPU_INSTANCES {
            let minor = capability_minor(gpu, instance, None);
            let _ = writeln!(list, "gpu{gpu}/gi{instance}/access {minor}");
            for part in 0..MOST_COMPUTE_INSTANCES {
                let minor = capability_minor(gpu, instance, Some(part));
                let _ = writeln!(list, "gpu{gpu}/gi{instance}/ci{part}/access {minor}");
            }
        }
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig;

    #[test]
    fn the_list_of_minors_is_that_of_published_ones() {
        let list = list_of_minors();
        assert!(list.starts_with(
            "config 1\nmonitor 2\ngpu0/gi0/access 3\ngpu0/gi0/ci0/access 4\ngpu0/gi0/ci1/access 5\n"
        ));
        assert!(list.ends_with("gpu31/gi14/ci6/access 4321\ngpu31/gi14/ci7/access 4322\n"));
    }

    #[test]
    fn capabilities_come_and_go_with_their_instances() {
        let name = format!("nvml-mock-capabilities-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let root = directory.join("driver/nvidia/capabilities");
        let mut state = State {
            board: "h100-nvswitch-8".to_owned(),
            proc_directory: Some(directory.clone()),
            ..State::default()
        };
        let board = Board::named(&state.board).unwrap();
        let table = board.mig_table().unwrap();
        let uuid = state.uuid(&board, 2);
        let id = mig::create_gpu_instance(table, state.card(&uuid), 14, None).unwrap();
        mig::create_compute_instance(table, state.card(&uuid), id, 1, None).unwrap();
        show(&state).unwrap();
        let compute = root.join("gpu2/mig/gi3/ci0/access");
        let content = fs::read_to_string(&compute).unwrap();
        let minor = capability_minor(2, 3, Some(0));
        assert!(
            content.starts_with(&format!("DeviceFileMinor: {minor}\n")),
            "{content}"
        );
        assert!(root.join("gpu2/mig/gi3/access").exists());
        assert!(root.join("mig/config").exists());

        // Another minor number of the GPU: what stood under the old one is gone.
        state.card(&uuid).minor = Some(20);
        show(&state).unwrap();
        assert!(!root.join("gpu2/mig/gi3").exists());
        assert!(root.join("gpu20/mig/gi3/ci0/access").exists());

        mig::destroy_compute_instance(state.card(&uuid), id, 0, false).unwrap();
        show(&state).unwrap();
        assert!(!root.join("gpu20/mig/gi3/ci0").exists());
        assert!(root.join("gpu20/mig/gi3/access").exists());
        mig::destroy_gpu_instance(state.card(&uuid), id, false).unwrap();
        show(&state).unwrap();
        assert!(!root.join("gpu20/mig/gi3").exists());
        fs::remove_dir_all(directory).unwrap();
    }
}
