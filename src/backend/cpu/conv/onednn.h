/* oneDNN, versions 2 and 3, behind one set of names. For the files onednn_*.c only.
 *
 * weft's pool owns the threads: a primitive is made for one thread and runs inside a task of the
 * pool. The distributions' oneDNN runs its loops by GNU OpenMP, which keeps the number of threads
 * for each calling thread. So each task sets that number to 1 and restores it. */
#ifndef WEFTI_CPU_ONEDNN_H
#define WEFTI_CPU_ONEDNN_H

#ifdef WEFT_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

#include "backend/cpu/conv/conv.h"
#include "backend/cpu/cpu.h"
#include "base/status.h"
#include "weft/types.h"

#ifdef WEFT_HAVE_GOMP
int omp_get_max_threads(void);
void omp_set_num_threads(int threads);
#endif

/* Between wefti_onednn_alone and wefti_onednn_restore, oneDNN uses the calling thread only. */
static inline int wefti_onednn_alone(void) {
#ifdef WEFT_HAVE_GOMP
    int before = omp_get_max_threads();
    if (before != 1) omp_set_num_threads(1);
    return before;
#else
    return 1;
#endif
}
static inline void wefti_onednn_restore(int before) {
#ifdef WEFT_HAVE_GOMP
    if (before != 1) omp_set_num_threads(before);
#else
    (void)before;
#endif
}

static inline bool wefti_onednn_usable(void) {
    return !wefti_onednn_unused();
}

/* Runs a primitive and waits for its end. */
static inline dnnl_status_t wefti_onednn_execute(dnnl_primitive_t primitive, dnnl_stream_t stream,
                                                 int count, const dnnl_exec_arg_t *list) {
    dnnl_status_t status = dnnl_primitive_execute(primitive, stream, count, list);
    return status == dnnl_success ? dnnl_stream_wait(stream) : status;
}

static inline dnnl_data_type_t wefti_onednn_dtype(weft_dtype d) {
    return d == WEFT_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* Memory descriptors are structs in version 2 and handles in version 3. `wefti_md` is the owned
 * form, zeroed if empty. `wefti_md_ref` is the form that functions take. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t wefti_md;
typedef const_dnnl_memory_desc_t wefti_md_ref;
static inline wefti_md_ref wefti_md_of(const wefti_md *md) {
    return *md;
}
static inline dnnl_status_t wefti_md_copy(wefti_md *out, wefti_md_ref from) {
    return dnnl_memory_desc_clone(out, from);
}
static inline dnnl_status_t wefti_md_tag(wefti_md *out, int rank, const dnnl_dims_t dims,
                                         dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_create_with_tag(out, rank, dims, type, tag);
}
static inline dnnl_status_t wefti_md_strides(wefti_md *out, int rank, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(out, rank, dims, type, strides);
}
static inline dnnl_status_t wefti_md_part(wefti_md *out, wefti_md_ref from, const dnnl_dims_t dims,
                                          const dnnl_dims_t offsets) {
    return dnnl_memory_desc_create_submemory(out, from, dims, offsets);
}
static inline void wefti_md_free(wefti_md *md) {
    if (*md) (void)dnnl_memory_desc_destroy(*md);
    *md = NULL;
}
#else
typedef dnnl_memory_desc_t wefti_md;
typedef const dnnl_memory_desc_t *wefti_md_ref;
static inline wefti_md_ref wefti_md_of(const wefti_md *md) {
    return md;
}
static inline dnnl_status_t wefti_md_copy(wefti_md *out, wefti_md_ref from) {
    *out = *from;
    return dnnl_success;
}
static inline dnnl_status_t wefti_md_tag(wefti_md *out, int rank, const dnnl_dims_t dims,
                                         dnnl_data_type_t type, dnnl_format_tag_t tag) {
    return dnnl_memory_desc_init_by_tag(out, rank, dims, type, tag);
}
static inline dnnl_status_t wefti_md_strides(wefti_md *out, int rank, const dnnl_dims_t dims,
                                             dnnl_data_type_t type, const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(out, rank, dims, type, strides);
}
static inline dnnl_status_t wefti_md_part(wefti_md *out, wefti_md_ref from, const dnnl_dims_t dims,
                                          const dnnl_dims_t offsets) {
    return dnnl_memory_desc_init_submemory(out, from, dims, offsets);
}
static inline void wefti_md_free(wefti_md *md) {
    (void)md;
}
#endif

#endif
#endif
