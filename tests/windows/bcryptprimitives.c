/* The one function of bcryptprimitives.dll that Rust's standard library calls: Wine before 9.0 has
   no such DLL. RtlGenRandom does the same; advapi32 exports it as SystemFunction036. */
#include <windows.h>

BOOLEAN NTAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE data, SIZE_T size)
{
    return SystemFunction036(data, (ULONG)size);
}
