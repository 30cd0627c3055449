"""Operations of both faces of the client, without input or output: requests out, results in."""
