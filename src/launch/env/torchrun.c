/* torchrun. Source: "Environment Variables" of its documentation. */
#include "launch/env/reader.h"

/* Many other programs use the names RANK and WORLD_SIZE too. One of them alone says nothing,
 * unless torchrun's other variables are there. */
static weft_status read_torchrun(wefti_env_reader *r) {
    bool rank = wefti_reader_get(r, "RANK") != NULL,
         size = wefti_reader_get(r, "WORLD_SIZE") != NULL;
    if (rank != size && !wefti_reader_get(r, "MASTER_ADDR")) return WEFT_OK;
    return wefti_read_numbered(r, WEFTI_START_TORCHRUN);
}

const wefti_launcher_source wefti_source_torchrun = {.names = {"torchrun", "RANK", "WORLD_SIZE",
                                                               "LOCAL_RANK", "LOCAL_WORLD_SIZE",
                                                               "GROUP_RANK", "GROUP_WORLD_SIZE"},
                                                     .read = read_torchrun};
