//! What loaders make of the cache: glibc's own one, in a root of its own, and images without it.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use crate::container::{Container, LIBRARY, succeeds};

const UPDATE: [&str; 3] = ["update-ldcache", "--library", LIBRARY];

#[test]
fn an_image_without_glibc_is_left_alone() {
    let container = Container::new();
    fs::remove_file(container.path("lib64/ld-linux-x86-64.so.2")).unwrap();
    container.write("lib/ld-musl-x86_64.so.1", b"");
    succeeds(&container.run(&UPDATE));
    assert!(!container.path("etc/ld.so.cache").exists());
    assert_eq!(fs::read_dir(container.path("etc")).unwrap().count(), 1);
}

#[test]
fn the_second_of_two_hooks_changes_nothing() {
    let container = Container::new();
    let file = container.path("etc/ld.so.cache");
    succeeds(&container.run(&UPDATE));
    let written = (
        fs::read(&file).unwrap(),
        fs::metadata(&file).unwrap().modified().unwrap(),
    );
    succeeds(&container.run(&UPDATE));
    assert_eq!(
        (
            fs::read(&file).unwrap(),
            fs::metadata(&file).unwrap().modified().unwrap()
        ),
        written
    );
}

#[cfg(target_arch = "x86_64")]
mod real {
    use super::*;

    /// Opens a library by its name, and prints what that says of itself.
    const PROGRAM: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words) {
    for (int word = 1; word < count; word++) {
        void *library = dlopen(words[word], RTLD_NOW);
        const char *(*who)(void) = library ? (const char *(*)(void))dlsym(library, "who") : NULL;
        puts(who ? who() : dlerror());
    }
    return 0;
}"#;

    fn compile(arguments: &[&str], source: &str, directory: &Path) {
        let file = directory.join("source.c");
        fs::write(&file, source).unwrap();
        let status = Command::new("cc")
            .args(arguments)
            .arg(file)
            .arg("-ldl")
            .status();
        assert!(status.unwrap().success());
    }

    fn library(container: &Container, path: &str, soname: &str, says: &str) {
        let source = format!("const char *who(void) {{ return \"{says}\"; }}");
        let file = container.path(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        let name = format!("-Wl,-soname,{soname}");
        compile(
            &["-shared", "-fPIC", "-o", file.to_str().unwrap(), &name],
            &source,
            &container.host(""),
        );
    }

    /// An image with the loader and the C library of this machine, and the program.
    fn image() -> Container {
        let container = Container::new();
        fs::copy(
            "/lib64/ld-linux-x86-64.so.2",
            container.path("lib64/ld-linux-x86-64.so.2"),
        )
        .unwrap();
        let output = Command::new("cc")
            .arg("-print-file-name=libc.so.6")
            .output()
            .unwrap();
        let libc = String::from_utf8(output.stdout).unwrap();
        // Where loaders of either family of distributions look by themselves.
        for directory in ["lib", "lib64"] {
            fs::create_dir_all(container.path(directory)).unwrap();
            fs::copy(
                libc.trim(),
                container.path(&format!("{directory}/libc.so.6")),
            )
            .unwrap();
        }
        let program = container.path("program");
        compile(
            &["-o", program.to_str().unwrap()],
            PROGRAM,
            &container.host(""),
        );
        container
    }

    /// Runs something inside the container's root.
    fn inside(container: &Container, words: &[&str]) -> Output {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let root = format!("--root={}", container.path("").display());
        command
            .arg("--mount")
            .arg(root)
            .args(words)
            .output()
            .unwrap()
    }

    fn said(container: &Container, names: &[&str]) -> String {
        let output = inside(container, &[&["/program"], names].concat());
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
    }

    #[test]
    fn the_loader_finds_the_driver_s_library_only_by_the_cache() {
        let container = image();
        library(
            &container,
            "usr/lib/nvidia/libcuda.so.1",
            "libcuda.so.1",
            "the driver",
        );
        assert!(
            said(&container, &["libcuda.so.1"])
                .starts_with("libcuda.so.1: cannot open shared object file")
        );
        succeeds(&container.run(&UPDATE));
        assert_eq!(said(&container, &["libcuda.so.1"]), "the driver\n");
    }

    /// The image's own cache is made by its own `ldconfig`, in both formats.
    #[test]
    fn what_the_image_s_own_cache_says_is_still_found_and_the_driver_goes_first() {
        for format in ["new", "compat"] {
            let container = image();
            library(
                &container,
                "opt/stubs/libcuda.so.1",
                "libcuda.so.1",
                "a stub",
            );
            library(
                &container,
                "opt/stubs/libother.so.2",
                "libother.so.2",
                "other",
            );
            // Only loaders of the new format know such directories.
            if format == "new" {
                let path = "opt/stubs/glibc-hwcaps/x86-64-v2/libother.so.2";
                library(&container, path, "libother.so.2", "other for v2");
            }
            // Enough of them that the loader has to find them by its order.
            for number in [1, 2, 9, 10, 11, 100] {
                let soname = format!("lib{number}x.so.{number}");
                library(&container, &format!("opt/stubs/{soname}"), &soname, &soname);
            }
            let root = container.path("");
            let made = Command::new("ldconfig")
                .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
                .args(["-c", format, "-r"])
                .arg(root)
                .arg("/opt/stubs")
                .output()
                .unwrap();
            assert!(
                made.status.success(),
                "{}",
                String::from_utf8_lossy(&made.stderr)
            );
            let names = [
                "libcuda.so.1",
                "libother.so.2",
                "lib1x.so.1",
                "lib9x.so.9",
                "lib10x.so.10",
                "lib100x.so.100",
            ];
            let before = said(&container, &names);
            assert!(before.starts_with("a stub\nother"), "{before}");

            library(
                &container,
                "usr/lib/nvidia/libcuda.so.1",
                "libcuda.so.1",
                "the driver",
            );
            succeeds(&container.run(&UPDATE));
            assert_eq!(
                said(&container, &names),
                before.replace("a stub", "the driver"),
                "{format}"
            );
            let listed = Command::new("ldconfig")
                .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
                .arg("-p")
                .arg("-C")
                .arg(container.path("etc/ld.so.cache"))
                .output()
                .unwrap();
            let listed = String::from_utf8(listed.stdout).unwrap();
            let driver = "libcuda.so.1 (libc6,x86-64) => /usr/lib/nvidia/libcuda.so.1";
            let stub = "libcuda.so.1 (libc6,x86-64) => /opt/stubs/libcuda.so.1";
            assert!(listed.find(driver) < listed.find(stub), "{listed}");
            let has_names = listed.contains("hwcap: \"x86-64-v2\"");
            assert_eq!(has_names, format == "new", "{listed}");
        }
    }
}
