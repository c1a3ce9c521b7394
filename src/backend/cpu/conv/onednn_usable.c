/* Checks that a build of oneDNN runs its work in the calling thread, as weft's tasks need. */
#include "backend/cpu/cpu.h"

#include <stddef.h>

#ifdef WEFT_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

const char *wefti_onednn_unused(void) {
#ifdef WEFT_HAVE_ONEDNN
    switch (dnnl_version()->cpu_runtime) {
    case DNNL_RUNTIME_SEQ:
    case DNNL_RUNTIME_OMP:
    case DNNL_RUNTIME_TBB:
        return NULL;
    case DNNL_RUNTIME_SYCL:
        return "the library found is for SYCL";
    default:
        return "the library found runs on threads of another's";
    }
#else
    return NULL;
#endif
}
