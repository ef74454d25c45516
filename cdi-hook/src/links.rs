//! Symbolic links.

use std::path::Path;

use crate::{Failure, Link, container_root::ContainerRoot};

/// Makes a link. What the image has there gives way: the link leads to what was mounted, and the image's own would not fit
/// the kernel's module.
pub(crate) fn make(root: &ContainerRoot, link: &Link) -> Result<(), Failure> {
    let name = link.path.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failure::Arguments(format!("{} names no file", link.path.display())))?;
    let parent = link.path.parent().unwrap_or_else(|| Path::new("/"));
    root.directory(parent)?.put_link(name, &link.target)
}
