#include "pystate.h"

const char *pst_status_name(pst_status s) {
    switch (s) {
    case PST_OK:
        return "ok";
    case PST_NOT_FOUND:
        return "not found";
    case PST_NO_MEMORY:
        return "out of memory";
    case PST_NO_SPACE:
        return "no space left on the file system";
    case PST_LIMIT:
        return "memory limit reached";
    case PST_ADDRESS_SPACE:
        return "address space could not be reserved";
    case PST_INVALID:
        return "invalid argument";
    case PST_WRONG_TYPE:
        return "wrong type";
    case PST_OVERFLOW:
        return "overflow";
    case PST_WRONG_KEY_GROUP:
        return "key group outside the table's range";
    case PST_STALE:
        return "batch is stale";
    case PST_BUSY:
        return "table is locked by another process";
    case PST_MISMATCH:
        return "shared table does not match";
    case PST_SNAPSHOT_TOO_OLD:
        return "snapshot too old";
    case PST_NO_UNDO:
        return "epoch is outside the undo window";
    case PST_CORRUPT:
        return "corrupt data";
    case PST_NEWER_FORMAT:
        return "newer file format";
    case PST_IO:
        return "system call failed";
    case PST_POISONED:
        return "open epoch must be rolled back";
    case PST_TOO_LARGE:
        return "too large";
    case PST_CALLBACK:
        return "callback failed";
    case PST_SCHEMA:
        return "schema does not fit";
    case PST_NO_STACK:
        return "rows lie in files below the table, and no stack of them is set";
    case PST_NO_ROOM:
        return "the rows of so many keys do not fit into the table";
    case PST_NOT_HERE:
        return "not in the table, which has files below";
    case PST_CHANGED:
        return "changed while it was copied";
    }
    return "unknown status";
}
