/* Copies of masters (docs/design/memory.md), and of what servers keep. An update makes the copies
 * of what it changes. After any other change, the next pass makes all copies again. A copy has the
 * region of its master, so each rank makes its own. */
#include <string.h>

#include "session/parts.h"
#include "tensor/tensor.h"

/* Makes the copy of `count` elements from element `first` on. */
static weft_status copy_block(const wefti_home *master, weft_dtype from_type,
                              const wefti_home *copy, weft_dtype to_type, int64_t first,
                              int64_t count) {
    const int64_t from_size = (int64_t)weft_dtype_bytes(from_type),
                  to_size = (int64_t)weft_dtype_bytes(to_type);
    wefti_mapping from, to;
    WEFT_TRY(
        wefti_home_map(master, first * from_size, count * from_size, WEFTI_ACCESS_READ, &from));
    weft_status status =
        wefti_home_map(copy, first * to_size, count * to_size, WEFTI_ACCESS_WRITE, &to);
    if (status >= 0) {
        if (from_type == to_type)
            memcpy(to.data, from.data, (size_t)(count * to_size));
        else
            wefti_convert(to_type, to.data, from_type, from.data, count);
        status = wefti_home_unmap(&to, WEFT_OK);
    }
    return wefti_home_unmap(&from, status);
}

static weft_status copy_tensor(const wefti_rank_device *device, const wefti_tensor *t) {
    enum { BLOCK = WEFTI_HOME_BLOCK / sizeof(double) };
    const int64_t elems = weft_desc_elems(&t->desc);
    const bool served = wefti_location_space(t->home) == WEFTI_SPACE_SERVER;
    const weft_dtype from = t->desc.dtype, to = served ? from : WEFT_BF16;
    const wefti_home master = wefti_rank_device_home(device, t->home, weft_desc_bytes(&t->desc)),
                     copy = wefti_rank_device_home(device, t->copy, wefti_tensor_copy_bytes(t));
    for (int64_t at = 0; at < elems; at += BLOCK)
        WEFT_TRY(copy_block(&master, from, &copy, to, at, elems - at < BLOCK ? elems - at : BLOCK));
    return WEFT_OK;
}

static weft_status copy_device(void *context, wefti_rank_device *device, int32_t rank) {
    const weft_session *s = context;
    for (int64_t i = 0; i < s->view_count; i++) {
        const wefti_program *p = s->views[i]->programs[rank];
        for (int32_t t = 0; t < p->tensor_count; t++)
            if (wefti_location_exists(p->tensors[t].copy))
                WEFT_TRY(copy_tensor(device, &p->tensors[t]));
    }
    return WEFT_OK;
}

weft_status wefti_session_copy_masters(weft_session *s) {
    const wefti_program *own = s->views[0]->own;
    if (s->copied || !(own->masters || own->serves)) return WEFT_OK;
    WEFT_TRY(wefti_fail_world(
        s->world, wefti_workers_name(s->workers, wefti_workers_run(s->workers, copy_device, s))));
    s->copied = true;
    return WEFT_OK;
}
