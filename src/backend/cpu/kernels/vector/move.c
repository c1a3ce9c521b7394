/* Moves and converts data: see kernels/data.h. A copy is a box of rows. Dimensions that lie
 * together in both arrays are merged first, so that the inner loop is as long as possible. */
#include "backend/cpu/kernels/vector/table.h"

enum { PIECE = 16384, MOVE_TILE = 32 };

typedef struct box {
    int rank, element;
    int64_t shape[WEFT_MAX_RANK], x_strides[WEFT_MAX_RANK], y_strides[WEFT_MAX_RANK];
    const char *x;
    char *y;
    int64_t rows, pieces, per; /* rows along the last dim, pieces of a row, pieces of a task */
} box;

/* Drops dims of size 1 and merges neighbours that are contiguous in both arrays. Rank >= 1
 * afterwards. */
static void simplify(box *b) {
    int out = -1;
    for (int d = 0; d < b->rank; d++) {
        if (b->shape[d] == 1) continue;
        int64_t size = b->shape[d], xs = b->x_strides[d], ys = b->y_strides[d];
        if (out >= 0 && b->x_strides[out] == xs * size && b->y_strides[out] == ys * size) {
            b->shape[out] *= size;
        } else {
            b->shape[++out] = size;
        }
        b->x_strides[out] = xs;
        b->y_strides[out] = ys;
    }
    if (out < 0) {
        b->shape[0] = 1;
        b->x_strides[0] = b->y_strides[0] = 1;
        out = 0;
    }
    b->rank = out + 1;
}

static void row_start(const box *b, int64_t row, int dims, int64_t *x, int64_t *y) {
    *x = *y = 0;
    for (int d = dims - 1; d >= 0; d--) {
        int64_t i = row % b->shape[d];
        row /= b->shape[d];
        *x += i * b->x_strides[d];
        *y += i * b->y_strides[d];
    }
}

#define STRIDED_LOOP(type)                                                                         \
    do {                                                                                           \
        const type *source = (const type *)(const void *)x;                                        \
        type *target = (type *)(void *)y;                                                          \
        for (int64_t i = 0; i < n; i++) target[i * ys] = source[i * xs];                           \
    } while (0)

static void copy_run(int element, const char *x, int64_t xs, char *y, int64_t ys, int64_t n) {
    if (xs == 1 && ys == 1) {
        memcpy(y, x, (size_t)n * (size_t)element);
        return;
    }
    switch (element) {
    case 1:
        STRIDED_LOOP(uint8_t);
        break;
    case 2:
        STRIDED_LOOP(uint16_t);
        break;
    case 4:
        STRIDED_LOOP(uint32_t);
        break;
    default:
        STRIDED_LOOP(uint64_t);
        break;
    }
}

static void copy_task(void *context, int64_t task, int thread) {
    (void)thread;
    const box *b = context;
    int last = b->rank - 1;
    int64_t end = min64(b->rows * b->pieces, (task + 1) * b->per);
    for (int64_t k = task * b->per; k < end; k++) {
        int64_t first = k % b->pieces * PIECE, n = min64(PIECE, b->shape[last] - first), x, y;
        row_start(b, k / b->pieces, last, &x, &y);
        x += first * b->x_strides[last];
        y += first * b->y_strides[last];
        copy_run(b->element, b->x + x * b->element, b->x_strides[last], b->y + y * b->element,
                 b->y_strides[last], n);
    }
}

static bool empty(const box *b) {
    for (int d = 0; d < b->rank; d++)
        if (b->shape[d] == 0) return true;
    return false;
}

static void copy_box(wefti_pool *pool, box *b) {
    int64_t width = b->shape[b->rank - 1];
    b->rows = 1;
    for (int d = 0; d < b->rank - 1; d++) b->rows *= b->shape[d];
    b->pieces = blocks_of(width, PIECE);
    b->per = max64(1, PIECE / width);
    wefti_pool_run(pool, blocks_of(b->rows * b->pieces, b->per), copy_task, b);
}

void KERNEL(copy_strided)(wefti_pool *pool, const wefti_copy_strided_args *a) {
    box b = {.rank = a->rank, .element = a->element, .x = a->x, .y = a->y};
    memcpy(b.shape, a->shape, sizeof b.shape);
    memcpy(b.x_strides, a->x_strides, sizeof b.x_strides);
    memcpy(b.y_strides, a->y_strides, sizeof b.y_strides);
    if (empty(&b)) return;
    simplify(&b);
    copy_box(pool, &b);
}

#define TILE_LOOP(type)                                                                            \
    for (int64_t j = 0; j < cols; j++)                                                             \
        for (int64_t i = 0; i < rows; i++)                                                         \
    memcpy(y + j * ys + i * (int64_t)sizeof(type), x + i * xs + j * (int64_t)sizeof(type),         \
           sizeof(type))

/* y[j][i] = x[i][j] for a small tile. Strides are in bytes between rows; elements in a row are
 * dense. */
static void transpose_tile(int element, const char *x, int64_t xs, char *y, int64_t ys,
                           int64_t rows, int64_t cols) {
    if (element == 4 && rows == MOVE_TILE && cols == MOVE_TILE) {
        for (int64_t i = 0; i < MOVE_TILE; i += 8)
            for (int64_t j = 0; j < MOVE_TILE; j += 8)
                transpose8(x + i * xs + j * 4, xs, y + j * ys + i * 4, ys);
        return;
    }
    switch (element) {
    case 1:
        TILE_LOOP(uint8_t);
        break;
    case 2:
        TILE_LOOP(uint16_t);
        break;
    case 4:
        TILE_LOOP(uint32_t);
        break;
    default:
        TILE_LOOP(uint64_t);
        break;
    }
}

/* A box: x is dense along `inner`, and y is dense along its last dim. */
typedef struct transpose_run {
    box b;
    int inner;              /* dim along which x has stride 1 */
    int64_t tiles_i, outer; /* bands of MOVE_TILE along y's last dim; product of the other dims */
} transpose_run;

static void transpose_task(void *context, int64_t task, int thread) {
    (void)thread;
    const transpose_run *r = context;
    const box *b = &r->b;
    int last = b->rank - 1;
    int64_t first = task % r->tiles_i * MOVE_TILE, outer = task / r->tiles_i, x = 0, y = 0;
    for (int d = last - 1; d >= 0; d--) {
        if (d == r->inner) continue;
        int64_t i = outer % b->shape[d];
        outer /= b->shape[d];
        x += i * b->x_strides[d];
        y += i * b->y_strides[d];
    }
    int64_t rows = min64(MOVE_TILE, b->shape[last] - first), e = b->element;
    const char *source = b->x + (x + first * b->x_strides[last]) * e;
    char *target = b->y + (y + first) * e;
    for (int64_t j = 0; j < b->shape[r->inner]; j += MOVE_TILE)
        transpose_tile(b->element, source + j * e, b->x_strides[last] * e,
                       target + j * b->y_strides[r->inner] * e, b->y_strides[r->inner] * e, rows,
                       min64(MOVE_TILE, b->shape[r->inner] - j));
}

void KERNEL(permute)(wefti_pool *pool, const wefti_permute_args *a) {
    transpose_run r = {.b = {.rank = a->rank, .element = a->element, .x = a->x, .y = a->y}};
    box *b = &r.b;
    int64_t strides[WEFT_MAX_RANK], stride = 1;
    for (int d = a->rank - 1; d >= 0; d--) {
        strides[d] = stride;
        stride *= a->shape[d];
    }
    stride = 1;
    for (int d = a->rank - 1; d >= 0; d--) {
        b->shape[d] = a->shape[a->axes[d]];
        b->x_strides[d] = strides[a->axes[d]];
        b->y_strides[d] = stride;
        stride *= b->shape[d];
    }
    if (empty(b)) return;
    simplify(b);
    int last = b->rank - 1;
    for (r.inner = 0; r.inner < last && b->x_strides[r.inner] != 1;) r.inner++;
    if (b->x_strides[last] == 1 || b->x_strides[r.inner] != 1) {
        copy_box(pool, b);
        return;
    }
    r.tiles_i = blocks_of(b->shape[last], MOVE_TILE);
    r.outer = 1;
    for (int d = 0; d < last; d++)
        if (d != r.inner) r.outer *= b->shape[d];
    wefti_pool_run(pool, r.outer * r.tiles_i, transpose_task, &r);
}

static void convert_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_convert_args *a = context;
    int64_t first = task * PIECE, count = min64(PIECE, a->elements - first);
    weft_dtype from = a->x.dtype, to = a->y.dtype;
    size_t size_x = weft_dtype_bytes(from), size_y = weft_dtype_bytes(to);
    const char *x = (const char *)a->x.data + (size_t)first * size_x;
    char *y = (char *)a->y.data + (size_t)first * size_y;
    bool simple = (from == WEFT_F32 || from == WEFT_BF16) && (to == WEFT_F32 || to == WEFT_BF16);
    if (from == to) {
        memcpy(y, x, (size_t)count * size_x);
    } else if (simple) {
        FOR_VECTORS(i, n, count) {
            store(a->y, first + i, load(a->x, first + i, n), n);
        }
    } else {
        wefti_convert(to, y, from, x, count);
    }
}

void KERNEL(convert)(wefti_pool *pool, const wefti_convert_args *a) {
    wefti_convert_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->elements, PIECE), convert_task, &copy);
}

static void fill_task(void *context, int64_t task, int thread) {
    (void)thread;
    const wefti_fill_args *a = context;
    int64_t first = task * PIECE, count = min64(PIECE, a->elements - first);
    size_t size = weft_dtype_bytes(a->y.dtype);
    char *y = (char *)a->y.data + (size_t)first * size;
    _Alignas(8) char pattern[8] = {0};
    wefti_store(a->y.dtype, pattern, 0, a->value);
    bool zero = true;
    for (size_t i = 0; i < size; i++) zero = zero && pattern[i] == 0;
    if (zero) {
        memset(y, 0, (size_t)count * size);
        return;
    }
    /* Double the written part until the end is reached: memcpy runs at full speed for any element
     * size. */
    size_t total = (size_t)count * size, written = size;
    memcpy(y, pattern, size);
    while (written < total) {
        size_t more = written < total - written ? written : total - written;
        if (more > 4096) more = 4096 / size * size;
        memcpy(y + written, y, more);
        written += more;
    }
}

void KERNEL(fill)(wefti_pool *pool, const wefti_fill_args *a) {
    wefti_fill_args copy = *a;
    wefti_pool_run(pool, blocks_of(a->elements, PIECE), fill_task, &copy);
}
