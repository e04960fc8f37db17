/* Starts a command, sends it a console event once it says on standard error that it is ready, and
   ends with its exit code: console_event EVENT READY COMMAND
   EVENT is 0 for Ctrl-C, 1 for Ctrl-Break, 2 for a console that is closed. The event is delivered as
   the system delivers it, by a thread that begins in CtrlRoutine, because GenerateConsoleCtrlEvent
   cannot say that the console was closed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: error %lu\n", what, GetLastError());
    return 99;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "console_event EVENT READY COMMAND\n");
        return 99;
    }
    SECURITY_ATTRIBUTES inherited = {sizeof inherited, NULL, TRUE};
    HANDLE heard, said;
    if (!CreatePipe(&heard, &said, &inherited, 0))
        return failed("CreatePipe");
    SetHandleInformation(heard, HANDLE_FLAG_INHERIT, 0);
    STARTUPINFOA startup = {.cb = sizeof startup, .dwFlags = STARTF_USESTDHANDLES};
    startup.hStdOutput = GetStdHandle(STD_OUTPUT_HANDLE);
    startup.hStdError = said;
    PROCESS_INFORMATION child;
    if (!CreateProcessA(NULL, argv[3], NULL, NULL, TRUE, 0, NULL, NULL, &startup, &child))
        return failed("CreateProcess");
    CloseHandle(said);

    static char text[65536];
    DWORD used = 0, got;
    while (!strstr(text, argv[2])) {
        if (used == sizeof text - 1 || !ReadFile(heard, text + used, sizeof text - 1 - used, &got, NULL)) {
            fprintf(stderr, "%s: never said\n", text);
            TerminateProcess(child.hProcess, 99);
            return 99;
        }
        used += got;
    }

    void *routine = (void *)GetProcAddress(GetModuleHandleA("kernelbase.dll"), "CtrlRoutine");
    if (!routine)
        return failed("CtrlRoutine");
    void *event = (void *)(INT_PTR)atoi(argv[1]);
    if (!CreateRemoteThread(child.hProcess, NULL, 0, routine, event, 0, NULL))
        return failed("CreateRemoteThread");
    while (ReadFile(heard, text, sizeof text, &got, NULL))
        fwrite(text, 1, got, stderr);
    WaitForSingleObject(child.hProcess, INFINITE);
    DWORD code;
    GetExitCodeProcess(child.hProcess, &code);
    return (int)code;
}
