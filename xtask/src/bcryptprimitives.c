/* Wine 8 has no bcryptprimitives.dll, from which Rust's standard library takes its random numbers. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID buffer, ULONG bytes); /* RtlGenRandom */

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE buffer, SIZE_T bytes) {
    while (bytes > 0) {
        ULONG part = bytes > 0x40000000 ? 0x40000000 : (ULONG)bytes;
        if (!SystemFunction036(buffer, part)) return FALSE;
        buffer += part;
        bytes -= part;
    }
    return TRUE;
}
