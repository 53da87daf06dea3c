//! Functions that jump to an address that is set at run time.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function of a library.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    slot: &'static AtomicPtr<c_void>,
    /// Never called from here. The reference makes the linker take the function with this table.
    _forwarder: unsafe extern "C" fn(),
}

impl Function {
    pub(crate) const fn new(
        name: &'static str,
        slot: &'static AtomicPtr<c_void>,
        forwarder: unsafe extern "C" fn(),
    ) -> Self {
        Self { name, slot, _forwarder: forwarder }
    }

    /// The address that the function jumps to.
    pub(crate) fn get(&self) -> *mut c_void {
        self.slot.load(Ordering::Acquire)
    }

    /// Sets the address that the function jumps to.
    ///
    /// # Safety
    /// It is that of a function with the signature that the callers of this name use, and stays valid.
    pub(crate) unsafe fn set(&self, address: *mut c_void) {
        self.slot.store(address, Ordering::Release);
    }
}

/// The instruction of a forwarder. It touches neither arguments nor the stack, so that it serves every signature.
#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp qword ptr [rip + {slot}]"
    };
}
/// On 64-bit ARM `x16` is the register that a call may change between caller and callee.
#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "adrp x16, {slot}\nldr x16, [x16, :lo12:{slot}]\nbr x16"
    };
}

/// Keeps a function out of the table of dynamic symbols: in a shared library the calls of this library stay in it, and
/// other libraries of the process do not see the name.
#[cfg(target_os = "linux")]
macro_rules! hide {
    ($name:ident) => {
        concat!(".hidden ", stringify!($name))
    };
}
#[cfg(not(target_os = "linux"))]
macro_rules! hide {
    ($name:ident) => {
        ""
    };
}

/// Defines functions of a library's names, which jump to `$default` until another address is set, and a table of them.
macro_rules! forward {
    ($(#[$doc:meta])* $table:ident, $default:path, [$($name:ident)*]) => {
        $(#[$doc])*
        pub(crate) static $table: &[$crate::forward::Function] = {
            mod slots {
                #![allow(non_upper_case_globals)]
                $(pub(super) static $name: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new($default as *mut std::ffi::c_void);)*
            }
            $(
                // SAFETY: the name is one of CUDA's, which no other crate defines. The function only jumps, so the
                // signature of its caller is that of the function it jumps to.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $name() {
                    std::arch::naked_asm!($crate::forward::hide!($name), $crate::forward::jump!(), slot = sym slots::$name)
                }
            )*
            &[$($crate::forward::Function::new(stringify!($name), &slots::$name, $name)),*]
        };
    };
}
pub(crate) use {forward, hide, jump};
