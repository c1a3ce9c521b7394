/* Access of the host to ranges of homes: see home.h. */
#include "device/home.h"

#include "base/memory.h"

const char *wefti_space_text(wefti_space space) {
    static const char *const names[WEFTI_SPACES] = {"device", "host", "disk", "server"};
    return names[space];
}

/* ---- arenas ---- */

const wefti_arena_block *wefti_arena_block_of(const wefti_device_arena *arena, int64_t offset) {
    if (!arena->count) return NULL;
    const wefti_arena_block *block = &arena->blocks[arena->count - 1];
    while (block->begin > offset) block--;
    return block;
}

unsigned char *wefti_arena_at(const wefti_device_arena *arena, int64_t offset) {
    const wefti_arena_block *block = wefti_arena_block_of(arena, offset);
    return block && block->memory ? block->memory + (offset - block->begin) : NULL;
}

/* How many bytes lie in one block from `offset` on. */
static int64_t bytes_left(const wefti_device_arena *arena, int64_t offset) {
    int64_t end = arena->bytes;
    for (int64_t i = arena->count; i-- > 0 && arena->blocks[i].begin > offset;)
        end = arena->blocks[i].begin;
    return end - offset;
}

/* ---- ranges ---- */

static weft_status check(const wefti_home *h, int64_t offset, int64_t bytes) {
    WEFT_REQUIRE(offset >= 0 && bytes >= 0 && offset <= h->bytes && bytes <= h->bytes - offset,
                 WEFT_E_BUG, "%lld bytes from byte %lld of a home of %lld", (long long)bytes,
                 (long long)offset, (long long)h->bytes);
    WEFT_REQUIRE(!bytes || h->arena, WEFT_E_BUG, "%lld bytes of a home in another process",
                 (long long)bytes);
    return WEFT_OK;
}

/* The block of the next part of a range, and the part's bytes. */
static const wefti_arena_block *next(const wefti_home *h, int64_t offset, int64_t bytes,
                                     int64_t *out) {
    const int64_t left = bytes_left(h->arena, h->offset + offset);
    *out = bytes < left ? bytes : left;
    return wefti_arena_block_of(h->arena, h->offset + offset);
}

static weft_status read_part(const wefti_home *h, const wefti_arena_block *block, int64_t offset,
                             int64_t bytes, void *to) {
    wefti_disk_ticket *ticket;
    const int64_t at = h->offset + offset - block->begin;
    if (block->remote)
        return block->remote->read(block->remote->context, h->offset + offset, bytes, to);
    if (!block->file)
        return wefti_device_copy(h->device, to, WEFTI_SPACE_HOST, block->memory + at, h->space,
                                 bytes);
    WEFT_TRY(wefti_disk_stream_read(block->file, at, bytes, to, &ticket));
    return wefti_disk_stream_wait(block->file, ticket);
}

static weft_status write_part(const wefti_home *h, const wefti_arena_block *block, int64_t offset,
                              int64_t bytes, const void *from) {
    wefti_disk_ticket *ticket;
    const int64_t at = h->offset + offset - block->begin;
    if (block->remote)
        return block->remote->write(block->remote->context, h->offset + offset, bytes, from);
    if (!block->file)
        return wefti_device_copy(h->device, block->memory + at, h->space, from, WEFTI_SPACE_HOST,
                                 bytes);
    WEFT_TRY(wefti_disk_stream_write(block->file, at, bytes, from, &ticket));
    return wefti_disk_stream_wait(block->file, ticket);
}

weft_status wefti_home_read(const wefti_home *h, int64_t offset, int64_t bytes, void *to) {
    WEFT_TRY(check(h, offset, bytes));
    for (int64_t done = 0, part; done < bytes; done += part) {
        const wefti_arena_block *block = next(h, offset + done, bytes - done, &part);
        WEFT_TRY(read_part(h, block, offset + done, part, (char *)to + done));
    }
    return WEFT_OK;
}

weft_status wefti_home_write(const wefti_home *h, int64_t offset, int64_t bytes, const void *from) {
    WEFT_TRY(check(h, offset, bytes));
    for (int64_t done = 0, part; done < bytes; done += part) {
        const wefti_arena_block *block = next(h, offset + done, bytes - done, &part);
        WEFT_TRY(write_part(h, block, offset + done, part, (const char *)from + done));
    }
    return WEFT_OK;
}

weft_status wefti_home_lend(const wefti_home *h, int64_t offset, int64_t bytes,
                            const wefti_reader *reader, int64_t at, bool *out) {
    int64_t part;
    *out = false;
    WEFT_TRY(check(h, offset, bytes));
    if (!bytes || h->space != WEFTI_SPACE_DISK) return WEFT_OK;
    const wefti_arena_block *block = next(h, offset, bytes, &part);
    if (part < bytes) return WEFT_OK;
    return wefti_disk_stream_lend(block->file, h->offset + offset - block->begin, bytes, reader, at,
                                  out);
}

bool wefti_home_is_lent(const wefti_home *h) {
    if (!h->arena || h->space != WEFTI_SPACE_DISK || !h->bytes) return false;
    const wefti_arena_block *block = wefti_arena_block_of(h->arena, h->offset);
    return wefti_disk_stream_lent(block->file, h->offset - block->begin, h->bytes) == h->bytes;
}

/* Whether the memory of a home is the host's own. */
static bool is_direct(const wefti_home *h) {
    return h->space < WEFTI_SPACE_DISK && (!h->device || h->device->table->direct);
}

void *wefti_home_memory(const wefti_home *h) {
    const bool reached = h->arena && is_direct(h) && bytes_left(h->arena, h->offset) >= h->bytes;
    return reached ? wefti_arena_at(h->arena, h->offset) : NULL;
}

/* ---- mappings ---- */

static void give_back(wefti_mapping *m) {
    wefti_free(m->data);
    *m = (wefti_mapping){.data = NULL};
}

static weft_status begin_copy(wefti_mapping *m) {
    const int64_t bytes = m->part.bytes;
    m->data = wefti_alloc((size_t)bytes);
    WEFT_REQUIRE(m->data, WEFT_E_NOMEM, "no memory to map %lld bytes of a device",
                 (long long)bytes);
    m->copied = true;
    if (!(m->access & WEFTI_ACCESS_READ)) return WEFT_OK;
    weft_status status = wefti_home_read(&m->part, 0, bytes, m->data);
    if (status < 0) give_back(m);
    return status;
}

weft_status wefti_home_map(const wefti_home *h, int64_t offset, int64_t bytes, wefti_access access,
                           wefti_mapping *out) {
    int64_t here;
    *out = (wefti_mapping){.access = access};
    WEFT_TRY(check(h, offset, bytes));
    WEFT_REQUIRE(bytes <= WEFTI_HOME_BLOCK, WEFT_E_BUG, "a mapping of %lld bytes, over %d",
                 (long long)bytes, WEFTI_HOME_BLOCK);
    if (!bytes) return WEFT_OK;
    out->part = (wefti_home){h->device, h->space, h->arena, h->offset + offset, bytes};
    const wefti_arena_block *block = next(h, offset, bytes, &here);
    if (here < bytes || !is_direct(h)) return begin_copy(out);
    out->data = block->memory + (h->offset + offset - block->begin);
    return WEFT_OK;
}

weft_status wefti_home_unmap(wefti_mapping *m, weft_status status) {
    if (!m->copied) return status;
    if (status >= 0 && m->access & WEFTI_ACCESS_WRITE)
        status = wefti_home_write(&m->part, 0, m->part.bytes, m->data);
    give_back(m);
    return status;
}
