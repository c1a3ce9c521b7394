/* `weft launch`, and users that set WEFT_RANK and WEFT_SIZE themselves. */
#include "launch/env/reader.h"

static weft_status read(wefti_env_reader *r) {
    return wefti_read_numbered(r, WEFTI_START_WEFT);
}

const wefti_launcher_source wefti_source_weft = {.names = {"weft launch", "WEFT_RANK", "WEFT_SIZE",
                                                           "WEFT_LOCAL_RANK", "WEFT_LOCAL_SIZE",
                                                           "WEFT_HOST", "WEFT_HOSTS"},
                                                 .read = read};
