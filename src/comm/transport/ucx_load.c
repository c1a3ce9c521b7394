/* Loading UCX: see comm/transport/ucx_load.h. */
#include "comm/transport/ucx_load.h"

#ifdef WEFT_HAVE_UCX

#include <dlfcn.h>
#include <stdbool.h>
#include <signal.h>
#include <string.h>

#include "base/memory.h"

enum { SIGNALS = 32 };

/* Loading runs UCX's constructors, which set handlers unless the environment forbids it. */
static void *load_quietly(const char *library) {
    struct sigaction before[SIGNALS];
    bool known[SIGNALS] = {false};
    for (int s = 1; s < SIGNALS; s++) known[s] = sigaction(s, NULL, &before[s]) == 0;
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    for (int s = 1; s < SIGNALS; s++) {
        struct sigaction after;
        if (!known[s] || sigaction(s, NULL, &after) != 0) continue;
        if (after.sa_handler != before[s].sa_handler) (void)sigaction(s, &before[s], NULL);
    }
    return handle;
}

static bool find(void *handle, const char *name, void *out) {
    void *found = dlsym(handle, name);
    memcpy(out, &found, sizeof found); /* ISO C converts no data pointers to functions */
    return found != NULL;
}

weft_status wefti_ucx_load(wefti_ucx_calls *out) {
    void *handle = load_quietly("libucp.so.0");
    WEFT_REQUIRE(handle, WEFT_E_NO_IMPL, "UCX is not installed: %s", dlerror());
#define ROW(name)                                                                                  \
    WEFT_REQUIRE(find(handle, #name, &out->name), WEFT_E_NO_IMPL,                                  \
                 "UCX is too old or too new: it has no %s", #name);
    WEFTI_UCX_LIST(ROW)
#undef ROW
    return WEFT_OK;
}

#else
typedef int wefti_ucx_is_left_out; /* a file must declare something */
#endif
