"""Numbers sorted by offset: a B+tree in plain C.

Owns: the nodes of one tree. The caller gives the numbers their meaning.

An insertion that gets no memory changes nothing. A removal needs no memory.

Invariants:
1. Offsets ascend within a node and from node to node, and all leaves have the same depth. A
   separator is higher than every offset to its left, and not higher than any offset of its child.
   Held by ``TestEntries``.
2. With n offsets, a search, an insertion and a removal visit O(log n) nodes. Removals keep this
   bound: a node that loses an offset is joined with a neighbour if both together fill at most three
   quarters of a node. Held by ``test_a_hundred_thousand_entries_cost_a_logarithm_each``.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memmove

cdef enum:
    SLOTS = 32
    JOINED_SLOTS_MAX = 24
    # Maximum number of inner nodes above each other; more would need more than 2**32 numbers.
    HEIGHT_MAX = 12


cdef struct Node:
    uint32_t count
    # Leaf: the offsets. Inner node: the separators of its children.
    int64_t offsets[SLOTS]


cdef struct Leaf:
    Node node
    uint32_t numbers[SLOTS]


cdef struct Inner:
    Node node
    Node *children[SLOTS]


cdef struct Tree:
    Node *root
    uint32_t height  # number of inner nodes above a leaf
    uint32_t count
    uint64_t node_bytes
    # Nodes visited and slots moved so far: the cost of the operations.
    uint64_t steps


cdef struct Place:
    # The way down, the root first, and a slot in the leaf, which may be one after the last.
    Inner *nodes[HEIGHT_MAX]
    uint32_t slots[HEIGHT_MAX]
    Leaf *leaf
    uint32_t slot


cdef inline uint32_t slots_up_to(const Node *node, int64_t offset) noexcept nogil:
    """Return how many of the node's offsets are not above ``offset``."""
    cdef uint32_t low = 0, half, rest = node.count
    while rest > 1:
        half = rest >> 1
        low += half if node.offsets[low + half - 1] <= offset else 0
        rest -= half
    return low + (rest == 1 and node.offsets[low] <= offset)


cdef inline bint tree_seek(Tree *tree, int64_t offset, Place *place) noexcept nogil:
    """Find the slot after the last offset up to ``offset``; return false in an empty tree."""
    cdef Node *node = tree.root
    cdef uint32_t depth, slot
    if node == NULL:
        return False
    tree.steps += tree.height + 1
    for depth in range(tree.height):
        slot = slots_up_to(node, offset)
        slot -= slot > 0
        place.nodes[depth] = <Inner *>node
        place.slots[depth] = slot
        node = (<Inner *>node).children[slot]
    place.leaf = <Leaf *>node
    place.slot = slots_up_to(node, offset)
    return True


cdef inline void tree_descend(
    Tree *tree, Place *place, uint32_t depth, Node *node, bint to_last
) noexcept nogil:
    """Descend from the node at this depth to its first leaf's first slot or last leaf's last."""
    cdef uint32_t slot
    tree.steps += tree.height + 1 - depth
    while depth < tree.height:
        slot = node.count - 1 if to_last else 0
        place.nodes[depth] = <Inner *>node
        place.slots[depth] = slot
        node = (<Inner *>node).children[slot]
        depth += 1
    place.leaf = <Leaf *>node
    place.slot = node.count - 1 if to_last else 0


cdef inline bint tree_first(Tree *tree, Place *place) noexcept nogil:
    """Find the lowest offset; return false in an empty tree."""
    if tree.root == NULL:
        return False
    tree_descend(tree, place, 0, tree.root, False)
    return True


cdef inline bint tree_last(Tree *tree, Place *place) noexcept nogil:
    """Find the highest offset; return false in an empty tree."""
    if tree.root == NULL:
        return False
    tree_descend(tree, place, 0, tree.root, True)
    return True


cdef inline bint place_previous(Tree *tree, Place *place) noexcept nogil:
    """Move the place one slot back; return false, without a move, when there is none."""
    cdef uint32_t depth = tree.height
    if place.slot:
        place.slot -= 1
        return True
    while depth:
        depth -= 1
        if place.slots[depth]:
            place.slots[depth] -= 1
            tree_descend(
                tree, place, depth + 1, place.nodes[depth].children[place.slots[depth]], True
            )
            return True
    return False


cdef inline bint place_settle(Tree *tree, Place *place) noexcept nogil:
    """Move the place to the next leaf if its slot is one after the last; return false if there is
    none."""
    cdef uint32_t depth = tree.height
    if place.slot < place.leaf.node.count:
        return True
    while depth:
        depth -= 1
        if place.slots[depth] + 1 < place.nodes[depth].node.count:
            place.slots[depth] += 1
            tree_descend(
                tree, place, depth + 1, place.nodes[depth].children[place.slots[depth]], False
            )
            return True
    return False


cdef inline bint place_next(Tree *tree, Place *place) noexcept nogil:
    """Move the place one slot forward; return false when there is none."""
    place.slot += 1
    return place_settle(tree, place)


cdef inline void leaf_insert(
    Tree *tree, Leaf *leaf, uint32_t slot, int64_t offset, uint32_t number
) noexcept nogil:
    cdef uint32_t moved = leaf.node.count - slot
    tree.steps += moved
    memmove(&leaf.node.offsets[slot + 1], &leaf.node.offsets[slot], moved * sizeof(int64_t))
    memmove(&leaf.numbers[slot + 1], &leaf.numbers[slot], moved * sizeof(uint32_t))
    leaf.node.offsets[slot] = offset
    leaf.numbers[slot] = number
    leaf.node.count += 1


cdef inline void inner_insert(
    Tree *tree, Inner *inner, uint32_t slot, int64_t offset, Node *child
) noexcept nogil:
    cdef uint32_t moved = inner.node.count - slot
    tree.steps += moved
    memmove(&inner.node.offsets[slot + 1], &inner.node.offsets[slot], moved * sizeof(int64_t))
    memmove(&inner.children[slot + 1], &inner.children[slot], moved * sizeof(Node *))
    inner.node.offsets[slot] = offset
    inner.children[slot] = child
    inner.node.count += 1


cdef inline void inner_remove(Tree *tree, Inner *inner, uint32_t slot) noexcept nogil:
    cdef uint32_t moved = inner.node.count - slot - 1
    tree.steps += moved
    memmove(&inner.node.offsets[slot], &inner.node.offsets[slot + 1], moved * sizeof(int64_t))
    memmove(&inner.children[slot], &inner.children[slot + 1], moved * sizeof(Node *))
    inner.node.count -= 1


cdef inline uint32_t slots_kept(uint32_t slot) noexcept nogil:
    """Return how many slots a full node keeps when it is split for an insertion at ``slot``.

    An insertion at the end keeps all of them, so that numbers inserted in order fill their nodes.
    """
    return SLOTS if slot == SLOTS else SLOTS // 2


cdef inline void move_slots(
    Tree *tree, Node *source, uint32_t first, Node *target, bint leaves
) noexcept nogil:
    """Move the slots from ``first`` on to the target's end."""
    cdef uint32_t count = source.count - first
    tree.steps += count
    memcpy(&target.offsets[target.count], &source.offsets[first], count * sizeof(int64_t))
    if leaves:
        memcpy(
            &(<Leaf *>target).numbers[target.count],
            &(<Leaf *>source).numbers[first],
            count * sizeof(uint32_t),
        )
    else:
        memcpy(
            &(<Inner *>target).children[target.count],
            &(<Inner *>source).children[first],
            count * sizeof(Node *),
        )
    source.count = first
    target.count += count


cdef inline int tree_reserve(Tree *tree, const Place *place, Node **spares) noexcept nogil:
    """Allocate the nodes for a split, leaf first; return their number, or -1 without memory."""
    cdef int count = 0
    cdef uint32_t depth = tree.height
    if place.leaf.node.count < SLOTS:
        return 0
    spares[0] = <Node *>malloc(sizeof(Leaf))
    count = 1
    while spares[count - 1] != NULL:
        if depth == 0:
            # The root splits: the last of these is the new root.
            spares[count] = <Node *>malloc(sizeof(Inner))
            count += 1
            break
        depth -= 1
        if place.nodes[depth].node.count < SLOTS:
            break
        spares[count] = <Node *>malloc(sizeof(Inner))
        count += 1
    if spares[count - 1] == NULL:
        while count:
            count -= 1
            free(spares[count])
        return -1
    tree.node_bytes += sizeof(Leaf) + (count - 1) * sizeof(Inner)
    return count


cdef inline int tree_plant(Tree *tree, int64_t offset, uint32_t number) noexcept nogil:
    """Make the first leaf."""
    cdef Leaf *leaf = <Leaf *>malloc(sizeof(Leaf))
    if leaf == NULL:
        return -1
    leaf.node.count = 1
    leaf.node.offsets[0] = offset
    leaf.numbers[0] = number
    tree.root = &leaf.node
    tree.height = 0
    tree.count = 1
    tree.node_bytes += sizeof(Leaf)
    return 0


cdef inline int tree_insert(Tree *tree, int64_t offset, uint32_t number) noexcept nogil:
    """Insert an offset that the tree does not have; return -1 without memory."""
    cdef Node *spares[HEIGHT_MAX + 2]
    cdef Place place
    cdef Node *left
    cdef Node *right
    cdef uint32_t depth = tree.height, slot, kept
    cdef int64_t separator
    cdef int used = 1, spare_count
    if not tree_seek(tree, offset, &place):
        return tree_plant(tree, offset, number)
    spare_count = tree_reserve(tree, &place, spares)
    if spare_count < 0:
        return -1
    tree.count += 1
    while depth and offset < place.nodes[depth - 1].node.offsets[0]:
        depth -= 1
        place.nodes[depth].node.offsets[0] = offset
    depth = tree.height
    if spare_count == 0:
        leaf_insert(tree, place.leaf, place.slot, offset, number)
        return 0
    left = &place.leaf.node
    right = spares[0]
    right.count = 0
    kept = slots_kept(place.slot)
    move_slots(tree, left, kept, right, True)
    if place.slot > kept or kept == SLOTS:
        leaf_insert(tree, <Leaf *>right, place.slot - kept, offset, number)
    else:
        leaf_insert(tree, <Leaf *>left, place.slot, offset, number)
    separator = right.offsets[0]
    while depth:
        depth -= 1
        left = &place.nodes[depth].node
        slot = place.slots[depth] + 1
        if left.count < SLOTS:
            inner_insert(tree, <Inner *>left, slot, separator, right)
            return 0
        kept = slots_kept(slot)
        spares[used].count = 0
        move_slots(tree, left, kept, spares[used], False)
        if slot > kept or kept == SLOTS:
            inner_insert(tree, <Inner *>spares[used], slot - kept, separator, right)
        else:
            inner_insert(tree, <Inner *>left, slot, separator, right)
        right = spares[used]
        separator = right.offsets[0]
        used += 1
    spares[used].count = 0
    inner_insert(tree, <Inner *>spares[used], 0, left.offsets[0], left)
    inner_insert(tree, <Inner *>spares[used], 1, separator, right)
    tree.root = spares[used]
    tree.height += 1
    return 0


cdef inline void node_free(Tree *tree, Node *node, bint leaf) noexcept nogil:
    tree.node_bytes -= sizeof(Leaf) if leaf else sizeof(Inner)
    free(node)


cdef inline bint tree_join(
    Tree *tree, Inner *parent, uint32_t slot, bint leaves
) noexcept nogil:
    """Join the parent's children at ``slot`` and after it if they are small enough."""
    cdef Node *left = parent.children[slot]
    cdef Node *right = parent.children[slot + 1]
    if left.count + right.count > JOINED_SLOTS_MAX:
        return False
    move_slots(tree, right, 0, left, leaves)
    inner_remove(tree, parent, slot + 1)
    node_free(tree, right, leaves)
    return True


cdef inline void tree_remove(Tree *tree, Place *place) noexcept nogil:
    """Remove the offset at the place, which is invalid afterwards."""
    cdef Leaf *leaf = place.leaf
    cdef uint32_t depth = tree.height, slot = place.slot, moved = leaf.node.count - slot - 1
    cdef Node *node = &leaf.node
    cdef Inner *parent
    cdef bint is_leaf = True
    tree.count -= 1
    tree.steps += moved
    memmove(&leaf.node.offsets[slot], &leaf.node.offsets[slot + 1], moved * sizeof(int64_t))
    memmove(&leaf.numbers[slot], &leaf.numbers[slot + 1], moved * sizeof(uint32_t))
    leaf.node.count -= 1
    while depth:
        depth -= 1
        parent = place.nodes[depth]
        slot = place.slots[depth]
        tree.steps += 1
        if node.count == 0:
            inner_remove(tree, parent, slot)
            node_free(tree, node, is_leaf)
        elif not (
            (slot + 1 < parent.node.count and tree_join(tree, parent, slot, is_leaf))
            or (slot > 0 and tree_join(tree, parent, slot - 1, is_leaf))
        ):
            return
        node = &parent.node
        is_leaf = False
    while tree.height and tree.root.count == 1:
        node = tree.root
        tree.root = (<Inner *>node).children[0]
        tree.height -= 1
        node_free(tree, node, False)
    if tree.root.count == 0:
        node_free(tree, tree.root, tree.height == 0)
        tree.root = NULL
        tree.height = 0


cdef inline const char *node_audit(
    const Tree *tree, const Node *node, uint32_t depth, int64_t low, int64_t high, uint32_t *found
) noexcept:
    """Return the fault of a node or of one below it, or NULL. Offsets lie in [low, high)."""
    cdef uint32_t slot
    cdef const char *problem
    cdef int64_t above
    if not 0 < node.count <= SLOTS:
        return b"a node has no slots, or too many"
    for slot in range(node.count):
        if not low <= node.offsets[slot] < high:
            return b"an offset is on the wrong side of a separator"
        if slot and node.offsets[slot] <= node.offsets[slot - 1]:
            return b"offsets do not ascend"
    if depth == tree.height:
        found[0] += node.count
        return NULL
    for slot in range(node.count):
        above = node.offsets[slot + 1] if slot + 1 < node.count else high
        problem = node_audit(
            tree,
            (<const Inner *>node).children[slot],
            depth + 1,
            node.offsets[slot],
            above,
            found,
        )
        if problem != NULL:
            return problem
    return NULL
