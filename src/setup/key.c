/* checkpoint.key: the key that encrypts a run's checkpoints, and reads encrypted ones. */
#include <string.h>

#include "setup/setup.h"

static weft_status take(wefti_built *b, bool writes) {
    const char *where = b->job->checkpoint.key;
    if (!where || !*where) return WEFT_OK;
    WEFT_REQUIRE(!writes || !*b->job->checkpoint.dir || !b->setup->party.world ||
                     b->job->checkpoint.sliced,
                 WEFT_E_ARG,
                 "several processes cannot write one encrypted file: set checkpoint.sliced: true, "
                 "so that each writes files of its own");
    WEFT_TRY(wefti_key_read(where, &b->setup->key));
    b->setup->encrypts = true;
    return wefti_key_keep(&b->setup->key);
}

weft_status wefti_built_take_key(wefti_built *b, bool writes) {
    weft_status status = take(b, writes);
    if (status < 0) (void)wefti_prefix(status, "checkpoint.key");
    return wefti_party_agree(&b->setup->party, status);
}
