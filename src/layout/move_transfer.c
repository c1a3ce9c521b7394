/* Expresses a move as a transfer. Each member of the group has its region of the layout before the
 * move and wants its region of the layout after it. */
#include "base/memory.h"
#include "layout/redistribute.h"

weft_status wefti_move_transfer(const wefti_mesh *mesh, const weft_desc *whole,
                                const wefti_layout *from, const wefti_move *move, int32_t rank,
                                wefti_transfer **out) {
    WEFT_REQUIRE(move->kind == WEFTI_MOVE_TRANSFER, WEFT_E_ARG,
                 "from layout %s to %s nothing is transferred", wefti_layout_text(from, mesh).text,
                 wefti_layout_text(&move->to, mesh).text);
    size_t members = (size_t)wefti_mesh_product(mesh, move->axes);
    char *block = wefti_alloc(sizeof(wefti_transfer) +
                              members * (2 * sizeof(wefti_region) + sizeof(int32_t)));
    WEFT_REQUIRE(block, WEFT_E_NOMEM, "no memory for a transfer of %zu members", members);
    wefti_transfer *t = (wefti_transfer *)block;
    *t = (wefti_transfer){.kind = move->transfer,
                          .dtype = whole->dtype,
                          .rank = whole->rank,
                          .members = (int32_t)members,
                          .have = (wefti_region *)(block + sizeof *t)};
    t->want = t->have + members;
    t->ranks = (int32_t *)(t->want + members);
    if (move->axes & from->sum & ~move->to.sum) t->reduction = WEFTI_REDUCE_SUM;
    if (move->axes & from->max & ~move->to.max) t->reduction = WEFTI_REDUCE_MAX;
    (void)wefti_mesh_group(mesh, rank, move->axes, t->ranks);
    for (int32_t m = 0; m < t->members; m++) {
        if (t->ranks[m] == rank) t->me = m;
        wefti_layout_region(from, mesh, whole, t->ranks[m], &t->have[m]);
        wefti_layout_region(&move->to, mesh, whole, t->ranks[m], &t->want[m]);
    }
    *out = t;
    return WEFT_OK;
}
