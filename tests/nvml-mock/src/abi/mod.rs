//! The C functions. Names, types and return codes are those of `nvml.h`; what they do is in the modules beside this one.

use std::{
    ffi::{CStr, c_char, c_uint},
    ptr::NonNull,
};

use crate::call::{Code, INSUFFICIENT_SIZE, INVALID_ARGUMENT, UNKNOWN, VERSION_MISMATCH};

/// Functions of NVML: each is exported under its name, and returns `SUCCESS` or the error of its body.
macro_rules! export {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> $crate::call::Code {
            $crate::call::run(stringify!($name), || -> Result<(), $crate::call::Code> { $body })
        }
    )*};
}

mod compute_instances;
mod events;
mod gpu_instances;
mod gpus;
mod health;
mod library;
mod links;
mod mig_devices;
mod processes;
mod profiles;

/// Stores a value where the caller wants it.
fn put<T>(target: *mut T, value: T) -> Result<(), Code> {
    let target = NonNull::new(target).ok_or(INVALID_ARGUMENT)?;
    // SAFETY: by contract of every caller of NVML, a pointer argument that is not null points to a writable
    // value of its type.
    unsafe { target.write(value) };
    Ok(())
}

/// What the caller has filled in.
fn get<T: Copy>(source: *const T) -> Result<T, Code> {
    if source.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract of every caller of NVML, a pointer argument that is not null points to a value of its type.
    Ok(unsafe { source.read() })
}

/// Stores values one after the other. By contract of those functions that write lists, the caller has room for as many as there can be,
/// or has said that it has room for these.
fn put_all<T>(target: *mut T, values: impl IntoIterator<Item = T>) -> Result<(), Code> {
    for (position, value) in values.into_iter().enumerate() {
        if target.is_null() {
            return Err(INVALID_ARGUMENT);
        }
        // SAFETY: there is room at this position, as the caller knows.
        put(unsafe { target.add(position) }, value)?;
    }
    Ok(())
}

/// Stores a text with its closing zero.
fn put_text(target: *mut c_char, capacity: c_uint, text: &str) -> Result<(), Code> {
    let capacity = usize::try_from(capacity).map_err(|_| INVALID_ARGUMENT)?;
    if target.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    if text.len() >= capacity {
        return Err(INSUFFICIENT_SIZE);
    }
    // SAFETY: the caller says that `capacity` bytes may be written, and the text with its zero is no longer.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), target, text.len());
        target.add(text.len()).write(0);
    }
    Ok(())
}

fn text<'a>(source: *const c_char) -> Result<&'a str, Code> {
    if source.is_null() {
        return Err(INVALID_ARGUMENT);
    }
    // SAFETY: by contract of NVML a text argument is closed by a zero and outlives the call.
    let text = unsafe { CStr::from_ptr(source) };
    text.to_str().map_err(|_| INVALID_ARGUMENT)
}

/// A text in a field of a structure.
fn characters<const LENGTH: usize>(text: &str) -> [c_char; LENGTH] {
    let mut characters = [0; LENGTH];
    // The last one stays the closing zero.
    for (target, byte) in characters.iter_mut().take(LENGTH - 1).zip(text.bytes()) {
        *target = byte.cast_signed();
    }
    characters
}

/// A number of things.
fn count(number: usize) -> Result<c_uint, Code> {
    c_uint::try_from(number).map_err(|_| UNKNOWN)
}

/// `NVML_STRUCT_VERSION` of `nvml.h`: the size with the version in the highest byte.
fn struct_version<T>(version: u32) -> Option<u32> {
    Some(u32::try_from(size_of::<T>()).ok()? | (version << 24))
}

/// Stores a structure whose caller has filled in, in its first field, which version of it is meant: one of these, each with what it is
/// to be.
fn put_version<First, Second>(
    target: *mut c_uint,
    first: (u32, impl FnOnce(c_uint) -> First),
    second: (u32, impl FnOnce(c_uint) -> Second),
) -> Result<(), Code> {
    let wanted = get(target)?;
    if Some(wanted) == struct_version::<First>(first.0) {
        put(target.cast::<First>(), first.1(wanted))
    } else if Some(wanted) == struct_version::<Second>(second.0) {
        put(target.cast::<Second>(), second.1(wanted))
    } else {
        Err(VERSION_MISMATCH)
    }
}
