/* Copies of masters (docs/design/memory.md). An update makes the copies of what it changes. After
 * any other change of masters, the next pass makes all copies again. A copy has the region of its
 * master, so each rank makes its own. */
#include "session/parts.h"
#include "tensor/tensor.h"

/* Makes the copy of `count` elements from element `first` on. */
static weft_status copy_block(const wefti_home *master, const wefti_home *copy, int64_t first,
                              int64_t count) {
    const int64_t from_size = (int64_t)weft_dtype_bytes(WEFT_F32),
                  to_size = (int64_t)weft_dtype_bytes(WEFT_BF16);
    wefti_mapping from, to;
    WEFT_TRY(
        wefti_home_map(master, first * from_size, count * from_size, WEFTI_ACCESS_READ, &from));
    weft_status status =
        wefti_home_map(copy, first * to_size, count * to_size, WEFTI_ACCESS_WRITE, &to);
    if (status >= 0) {
        wefti_convert(WEFT_BF16, to.data, WEFT_F32, from.data, count);
        status = wefti_home_unmap(&to, WEFT_OK);
    }
    return wefti_home_unmap(&from, status);
}

static weft_status copy_tensor(const wefti_rank_device *device, const wefti_tensor *t) {
    enum { BLOCK = WEFTI_HOME_BLOCK / 4 };
    const int64_t elems = weft_desc_elems(&t->desc);
    weft_desc narrow = t->desc;
    narrow.dtype = WEFT_BF16;
    const wefti_home master = wefti_rank_device_home(device, t->home, weft_desc_bytes(&t->desc)),
                     copy = wefti_rank_device_home(device, t->copy, weft_desc_bytes(&narrow));
    for (int64_t at = 0; at < elems; at += BLOCK)
        WEFT_TRY(copy_block(&master, &copy, at, elems - at < BLOCK ? elems - at : BLOCK));
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
    if (s->copied || !s->views[0]->own->masters) return WEFT_OK;
    WEFT_TRY(wefti_fail_world(
        s->world, wefti_workers_name(s->workers, wefti_workers_run(s->workers, copy_device, s))));
    s->copied = true;
    return WEFT_OK;
}
