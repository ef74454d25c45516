//! How a command names the GPUs that it is about.

use muster_device::Gpu;

/// What stands for UUIDs, for the numbers by which NVML and NVIDIA's programs name GPUs, and for PCI addresses.
const PLACEHOLDERS: [&str; 3] = ["{uuid}", "{index}", "{pci}"];

/// A GPU that a command is about.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The GPU.
    pub gpu: &'a Gpu,
    /// NVML's number for it now ([`muster_device::Backend::index`]). That of its device may be another: a device keeps its number over the exchange of
    /// GPUs.
    pub nvml_index: u32,
}

/// A program and its arguments, in which placeholders stand for GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    program: String,
    arguments: Vec<String>,
}

impl Template {
    /// Reads a command; `None` where there is none. It has to name the GPU: without that, NVIDIA's programs mean all of them.
    pub fn read(words: &[String]) -> Result<Option<Self>, String> {
        let Some((program, arguments)) = words.split_first() else {
            return Ok(None);
        };
        if !program.starts_with('/') {
            return Err(format!("{program:?} is no absolute path of a program"));
        }
        if let Some(word) = words.iter().find(|word| word.contains('\0')) {
            return Err(format!("{word:?} is no word of a command"));
        }
        let names_gpu = |word: &String| PLACEHOLDERS.iter().any(|it| word.contains(it));
        if names_gpu(program) {
            return Err(format!("{program:?} is no program: it is one for all GPUs"));
        }
        if let Some(word) = arguments.iter().find_map(|word| unknown(word)) {
            return Err(format!(
                "{word} stands for nothing: there are {}",
                PLACEHOLDERS.join(", ")
            ));
        }
        if !arguments.iter().any(names_gpu) {
            return Err(format!(
                "{program:?} is not told which GPU is meant: one of {} has to be among its arguments",
                PLACEHOLDERS.join(", ")
            ));
        }
        Ok(Some(Self {
            program: program.clone(),
            arguments: arguments.to_vec(),
        }))
    }

    /// Its program.
    pub fn program(&self) -> &str {
        &self.program
    }

    /// The command about these GPUs. Several are named in one word, with commas, as `nvidia-smi --id` takes them.
    pub fn about(&self, gpus: &[Named<'_>]) -> Vec<String> {
        let joined = |name: fn(&Named<'_>) -> String| {
            let names: Vec<String> = gpus.iter().map(name).collect();
            names.join(",")
        };
        let names = [
            joined(|named| named.gpu.uuid.clone()),
            joined(|named| named.nvml_index.to_string()),
            joined(|named| named.gpu.pci_bus_id.clone()),
        ];
        let filled = |word: &String| {
            let pairs = PLACEHOLDERS.into_iter().zip(&names);
            pairs.fold(word.clone(), |word, (placeholder, name)| {
                word.replace(placeholder, name)
            })
        };
        let arguments = self.arguments.iter().map(filled);
        std::iter::once(self.program.clone())
            .chain(arguments)
            .collect()
    }
}

/// What looks like a placeholder and is none.
fn unknown(word: &str) -> Option<&str> {
    let (_, rest) = word.split_once('{')?;
    let start = word.len() - rest.len() - 1;
    let end = start + word.get(start..)?.find('}')? + 1;
    let found = word.get(start..end)?;
    if PLACEHOLDERS.contains(&found) {
        unknown(word.get(end..)?)
    } else {
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::fixtures::gpu;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn placeholders_stand_for_the_gpus_wherever_they_are() {
        let template = words(&[
            "/bin/reset",
            "-i",
            "{pci}",
            "--all={uuid}:{index}",
            "{",
            "{}x",
        ]);
        let read = Template::read(&template[..5]).unwrap().unwrap();
        let gpus = [
            gpu("GPU-a", 0, "0000:1b:00.0"),
            gpu("GPU-b", 1, "0000:43:00.0"),
        ];
        let all: Vec<Named<'_>> = gpus
            .iter()
            .zip([3, 0])
            .map(|(gpu, nvml_index)| Named { gpu, nvml_index })
            .collect();
        let expected = [
            "/bin/reset",
            "-i",
            "0000:1b:00.0,0000:43:00.0",
            "--all=GPU-a,GPU-b:3,0",
            "{",
        ];
        assert_eq!(read.about(&all), expected);
        assert_eq!(read.about(&all[1..])[3], "--all=GPU-b:0");
        assert_eq!(Template::read(&[]), Ok(None));
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for (command, told) in [
            (&["reset"][..], "no absolute path"),
            (&["/bin/reset", "{uuid}{bus}"], "{bus}"),
            (&["/bin/reset", "{}"], "{}"),
            (&["/bin/{uuid}", "{uuid}"], "is no program"),
            (
                &["/usr/bin/nvidia-smi", "--gpu-reset"],
                "which GPU is meant",
            ),
            (&["/bin/check"], "which GPU is meant"),
            (&["/bin/check", "{uuid}", "\0"], "is no word"),
        ] {
            let error = Template::read(&words(command)).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
